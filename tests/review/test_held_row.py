"""One article: saved and finished under its token; a form that came too late overwrites nothing and loses no word."""

from typing import Any

import pytest
from articles.models import Article
from articles.views import EditArticle
from django import forms
from django.db import transaction

from django_taskclaim.contrib.review.conflicts import compared, written
from django_taskclaim.control.models import OperatorAct
from tests.behaviour.support import clock, facts, lose, set_raw, stored
from tests.review.conftest import Editor

pytestmark = pytest.mark.django_db


@pytest.fixture
def held(ada: Editor) -> int:
    """An article that Ada has on her desk."""
    ada.mine()
    ada.send(act="more")
    return ada.mine()[0]


def address(pk: int) -> str:
    return f"/articles/{pk}/"


def words(answer: Any) -> str:
    return " ".join(answer.content.decode().split())


def test_save_keeps_the_article_and_finish_ends_it(ada: Editor, held: int) -> None:
    fields = ada.open(held) | {"verdict": "mend", "text": "Mended."}
    ada.send(address(held), **fields, act="save")
    assert "Saved." in words(ada.page)
    row = Article.objects.get(pk=held)
    assert (row.text, facts(row).status) == ("Mended.", "processing")
    ada.send(address(held), **ada.open(held) | {"remark": "done"}, act="finish")
    row = Article.objects.get(pk=held)
    assert (row.remark, facts(row).status, facts(row).claimed_by) == ("done", "complete", ada.who)
    assert held not in ada.mine()


def test_a_wrong_form_is_shown_again_and_nothing_is_written(ada: Editor, held: int) -> None:
    fields = ada.open(held) | {"text": "My text."}
    answer = ada.send(address(held), **fields, act="finish")
    assert answer.status_code == 200
    assert "My text." in words(answer)
    row = Article.objects.get(pk=held)
    assert (facts(row).status, row.text) == ("processing", "Text 0.")


def test_a_lapsed_claim_that_nobody_took_still_saves(ada: Editor, held: int) -> None:
    fields = ada.open(held) | {"verdict": "keep"}
    set_raw(Article.objects.get(pk=held), "expires_at", clock("-1 HOUR"))
    ada.send(address(held), **fields, act="finish")
    assert facts(Article.objects.get(pk=held)).status == "complete"


@pytest.mark.parametrize("act", ["finish", "save", "hand_over"])
def test_a_late_form_is_refused_and_shows_both_texts(
    ada: Editor, ben: Editor, held: int, act: str
) -> None:
    fields = ada.open(held) | {
        "text": "Ada's <words>.",
        "verdict": "keep",
        "taskclaim_to": ben.user.pk,
    }
    taken = lose(Article.objects.get(pk=held), ben.who)
    taken.text, taken.verdict = "Ben's words.", "keep"
    taken.claim.complete(update_fields=["text", "verdict"])
    before = stored(taken)
    answer = ada.send(address(held), **fields, act=act)
    assert answer.status_code == 409
    assert stored(taken) == before
    page = words(answer)
    assert "nothing was written" in page
    assert "Ben Okri finished it" in page
    assert "1 field differs" in page
    assert "Ada&#x27;s &lt;words&gt;.</textarea>" in page
    assert "<del>Ada&#x27;s</del><ins>Ben&#x27;s</ins>" in page
    assert [one.differs for one in answer.context["fields"]] == [False, True, False, False]


def test_a_form_that_loses_the_race_inside_the_save_is_refused_as_well(
    ada: Editor, ben: Editor, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the claim and the save: the fence decides, and the save is undone with the completion."""
    fields = ada.open(held) | {"text": "Ada's words.", "verdict": "keep"}
    write = EditArticle.write

    def lose_first(self: Any, form: Any, then: Any) -> Any:
        Article.objects.filter(pk=held).take_over(by=ben.who, reason="test")
        return write(self, form, then)

    monkeypatch.setattr(EditArticle, "write", lose_first)
    answer = ada.send(address(held), **fields, act="finish")
    assert answer.status_code == 409
    assert Article.objects.get(pk=held).text != "Ada's words."
    assert "Ben Okri has held it" in words(answer)


def test_a_form_of_an_article_that_is_gone_keeps_the_text(ada: Editor, held: int) -> None:
    fields = ada.open(held) | {"text": "Ada's words."}
    Article.objects.filter(pk=held).delete()
    answer = ada.send(address(held), **fields, act="finish")
    assert answer.status_code == 409
    assert "It is gone." in words(answer)
    assert "Ada&#x27;s words." in words(answer)
    assert ada.look(address(held)).status_code == 404


def test_a_token_counts_only_for_the_person_it_names(ada: Editor, ben: Editor, held: int) -> None:
    """Somebody else has logged in in the same browser meanwhile; or somebody copies a token from a page."""
    fields = ada.open(held) | {"text": "Ada's words.", "verdict": "keep"}
    before = stored(Article.objects.get(pk=held))
    ben.look()
    for token in (fields["taskclaim_token"], "", "nonsense"):
        answer = ben.send(address(held), **fields | {"taskclaim_token": token}, act="finish")
        assert answer.status_code == 409
    assert stored(Article.objects.get(pk=held)) == before
    answer = ben.send(address(held), **fields, act="save")
    assert "under another name" in words(answer)


def test_skip_puts_the_article_off_and_changes_nothing(ada: Editor, held: int) -> None:
    fields = ada.open(held) | {"text": "Thrown away."}
    ada.send(address(held), **fields, act="skip")
    row = Article.objects.get(pk=held)
    assert (facts(row).status, facts(row).iteration) == ("open", 1)
    assert row.text != "Thrown away."
    ada.send(act="more")
    assert held not in ada.mine()
    ada.look()
    answer = ada.send(address(held), **fields, act="skip")
    assert answer.status_code == 409
    ada.send(address(held), act="take")
    assert facts(row).status == "open"  # it waits


def test_hand_over_saves_and_passes_on(ada: Editor, ben: Editor, held: int) -> None:
    fields = ada.open(held) | {"text": "Half done.", "verdict": "mend"}
    assert "Choose a colleague" in words(ada.send(address(held), **fields, act="hand_over"))
    fields["taskclaim_to"] = ben.user.pk
    ada.send(address(held), **fields, act="hand_over")
    row = Article.objects.get(pk=held)
    assert (row.text, facts(row).claimed_by, facts(row).iteration) == ("Half done.", ben.who, 1)
    assert held in ben.mine()
    assert held not in ada.mine()


def test_a_row_of_somebody_else_says_whose_and_is_taken_over_with_a_reason(
    ada: Editor, ben: Editor, held: int
) -> None:
    assert ben.look(address(held)).status_code == 409
    assert "Ada Lovelace has held it" in words(ben.page)
    seen = ben.page.context["seen"]
    answer = ben.send(address(held), act="take_over", taskclaim_seen=seen, taskclaim_reason=" ")
    assert "Say why" in words(answer)
    late = {"act": "take_over", "taskclaim_seen": f"9{seen}", "taskclaim_reason": "ill"}
    assert ben.send(address(held), **late).status_code == 409
    ben.send(address(held), **late | {"taskclaim_seen": seen})
    assert ben.page.status_code == 200
    assert facts(Article.objects.get(pk=held)).claimed_by == ben.who


def test_a_take_over_from_the_page_is_recorded(
    ada: Editor, ben: Editor, held: int, django_capture_on_commit_callbacks: Any
) -> None:
    ben.look(address(held))
    sent = {"taskclaim_seen": ben.page.context["seen"], "taskclaim_reason": "she is ill"}
    with django_capture_on_commit_callbacks(execute=True):
        ben.send(address(held), act="take_over", **sent)
    act = OperatorAct.objects.get()
    assert (act.act, act.by, act.reason, act.key) == (
        "take over",
        "Ben Okri",
        "she is ill",
        str(held),
    )


def test_a_free_row_can_be_taken_from_its_page(ben: Editor, articles: list[Article]) -> None:
    pk = articles[7].pk
    assert "nobody holds it" in words(ben.look(address(pk)))
    ben.send(address(pk), act="take")
    assert ben.page.status_code == 200
    assert ben.mine() == [pk]


# What differs


class Odd(forms.Form):
    choice = forms.ChoiceField(choices=[("group", [("a", "Apple")]), ("b", "Pear")])
    many = forms.MultipleChoiceField(choices=[("a", "Apple"), ("b", "Pear")], required=False)
    flag = forms.BooleanField(required=False)
    password = forms.CharField(widget=forms.PasswordInput)
    day = forms.DateField()


def test_every_kind_of_field_is_told_as_people_read_it_and_no_password_is() -> None:
    sent = {
        "choice": "a",
        "many": ["a", "b"],
        "flag": "on",
        "password": "secret",
        "day": "nonsense",
    }
    there = Odd(initial={"choice": "b", "many": ["a"], "flag": False, "day": None})
    found = {one.label: one for one in written(Odd(sent), there)}
    told = {label: (one.mine, one.theirs, one.differs) for label, one in found.items()}
    assert told == {
        "Choice": ("Apple", "Pear", True),
        "Many": ("Apple, Pear", "Apple", True),
        "Flag": ("yes", "no", True),
        "Day": ("nonsense", "", True),
    }


def test_long_texts_are_compared_by_words_and_what_is_equal_is_left_out() -> None:
    same = "word " * 200
    shown = str(compared(f"{same}old\r\nend {same}", f"{same}new\nend {same}"))
    assert "<del>old</del><ins>new</ins>" in shown
    assert len(shown) < 500
    assert str(compared("<b>", "<i>" * 20_000)).startswith("&lt;i&gt;")


def test_what_an_override_writes_stands_with_the_claim_or_not_at_all(
    ada: Editor, ben: Editor, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As docs/people.md tells to write it."""
    others = Article.objects.exclude(pk=held)
    plain = EditArticle.write
    asked = []

    def write(self: EditArticle, form: Any, then: Any) -> Any:
        asked.append(then)
        if form.cleaned_data["remark"] == "too late":
            lose(Article.objects.get(pk=held), ben.who)
        with transaction.atomic():
            others.update(remark="seen")
            return plain(self, form, then)

    monkeypatch.setattr(EditArticle, "write", write)
    fields = ada.open(held) | {"verdict": "keep"}
    answer = ada.send(address(held), **fields | {"remark": "too late"}, act="finish")
    assert answer.status_code == 409
    assert not others.filter(remark="seen").exists()
    other = ada.mine()[0]
    ada.send(address(other), **ada.open(other), act="save")
    assert others.filter(remark="seen").exists()
    finish, save = asked
    assert callable(finish)
    assert save is None
