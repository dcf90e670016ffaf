"""The review pages: a list that a reload keeps, and a form that overwrites nothing when it comes too late."""

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from articles.models import Article
from articles.views import EditArticle, MyArticles
from django.db import connections, transaction
from django.test import Client
from django.utils import timezone

from django_taskclaim.querysets.writes import stop_everyone
from django_taskclaim.switch import pause, resume
from tests.contrib.conftest import Editor, address, words
from tests.querysets.support import clock, facts, lose, set_raw, stored

pytestmark = [pytest.mark.once, pytest.mark.django_db(databases=["default", "other"])]


def lapse(pk: int) -> None:
    set_raw(Article.objects.get(pk=pk), "expires_at", clock("-1 HOUR"))


# The list


def test_the_button_fetches_five_and_a_reload_keeps_them(ada: Editor) -> None:
    """No GET extends a lease: a browser fetches pages that nobody looks at. What a visible page sends does."""
    assert ada.mine() == []
    mine = ada.fetch()
    assert len(mine) == 5
    assert mine == [row.pk for row in Article.objects.held_by(ada.who).order_by("pk")]
    row = Article.objects.get(pk=mine[0])
    set_raw(row, "expires_at", clock("+1 MINUTE"))
    assert ada.mine() == mine
    fields = ada.open(row.pk)
    assert facts(row).expires_at - timezone.now() < timedelta(minutes=2)
    for sign_of_life in (
        lambda: ada.send(act="renew"),
        lambda: ada.send(address(row.pk), taskclaim_token=fields["taskclaim_token"], act="renew"),
        ada.fetch,
        lambda: ada.send(address(row.pk), **fields, act="save"),
    ):
        sign_of_life()
        assert facts(row).expires_at - timezone.now() > timedelta(minutes=20)
        set_raw(row, "expires_at", clock("+1 MINUTE"))


def test_two_editors_never_get_one_article_and_a_lapsed_one_moves_on(
    ada: Editor, ben: Editor
) -> None:
    mine, theirs = ada.fetch(), ben.fetch()
    assert (len(mine), len(theirs)) == (5, 3)
    assert not set(mine) & set(theirs)
    page = words(ben.look("/articles/?asked"))
    assert "5 are held by others" in page
    assert "next free" in page
    for pk in mine[:2]:
        lapse(pk)
    assert set(mine[:2]) <= set(ben.fetch())
    assert not set(mine[:2]) & set(ada.mine())


def test_the_list_says_why_nothing_new_is_given_out(ada: Editor) -> None:
    """And not that nothing is left to do."""
    stop_everyone(Article, "default", timedelta(hours=1), "the wire service is down")
    page = words(ada.look("/articles/?asked"))
    assert "throttled until" in page
    assert "the wire service is down" in page


@pytest.mark.parametrize("needed", [None, ()])
def test_the_list_needs_a_login_a_csrf_token_and_a_known_act(
    ada: Editor, monkeypatch: pytest.MonkeyPatch, needed: Any
) -> None:
    stranger = Client()
    monkeypatch.setattr(MyArticles, "permission_required", needed)
    for answer in (stranger.get("/articles/"), stranger.post("/articles/", {"act": "more"})):
        assert answer.status_code in (302, 403)
    assert ada.client.post("/articles/", {"act": "more"}).status_code == 403
    ada.look()
    assert ada.send(act="nonsense").status_code == 400
    assert Article.objects.open().count() == 8


# One article


def test_save_keeps_the_article_and_finish_ends_it(ada: Editor, held: int) -> None:
    ada.act(held, "save", verdict="mend", text="Mended.")
    row = Article.objects.get(pk=held)
    assert (row.text, facts(row).status) == ("Mended.", "processing")
    ada.act(held, "finish", remark="done")
    row = Article.objects.get(pk=held)
    assert (row.remark, facts(row).status, facts(row).claimed_by) == ("done", "complete", ada.who)
    assert held not in ada.mine()


def test_a_lapsed_claim_that_nobody_took_still_saves(ada: Editor, held: int) -> None:
    """And an incomplete form is shown again."""
    answer = ada.act(held, "finish", text="My text.")
    assert answer.status_code == 200
    assert "My text." in words(answer)
    assert Article.objects.get(pk=held).text == "Text 0."
    fields = ada.open(held) | {"verdict": "keep"}
    lapse(held)
    ada.send(address(held), **fields, act="finish")
    assert facts(Article.objects.get(pk=held)).status == "complete"


@pytest.mark.promise(3)
@pytest.mark.parametrize(
    ("act", "lost"),
    [("finish", "taken"), ("save", "finished"), ("save", "taken"), ("hand_over", "gone")],
)
def test_a_late_form_overwrites_nothing_and_loses_no_word(
    ada: Editor, ben: Editor, held: int, act: str, lost: str
) -> None:
    """The page shows both texts, escaped, and says what became of the article."""
    to = {"taskclaim_to": ben.user.pk}
    fields = ada.open(held) | {"text": "Ada's <words>.", "verdict": "keep"} | to
    row = Article.objects.get(pk=held)
    if lost == "gone":
        row.delete()
    else:
        taken = lose(row, ben.who)
        taken.text, taken.verdict = "Ben's words.", "mend"
        write = taken.claim.complete if lost == "finished" else taken.save
        write(update_fields=["text", "verdict"])
    row.pk = held
    before = stored(row)
    answer = ada.send(address(held), **fields, act=act)
    assert answer.status_code == 409
    assert stored(row) == before
    page = words(answer)
    assert "nothing was written" in page
    assert "Ada&#x27;s &lt;words&gt;.</textarea>" in page
    said = {
        "finished": "Ben Okri finished it",
        "taken": "Ben Okri has held it",
        "gone": "It is gone.",
    }
    assert said[lost] in page
    assert ('"tr-stored">publish with my changes</div>' in page) == (lost != "gone")


def test_the_line_ends_of_a_browser_are_no_difference(ada: Editor, ben: Editor, held: int) -> None:
    Article.objects.filter(pk=held).update(text="One.\nTwo.\n")
    fields = ada.open(held) | {"text": "One.\r\nTwo.", "remark": "Mine."}
    lose(Article.objects.get(pk=held), ben.who)
    assert ada.send(address(held), **fields, act="save").context["differing"] == ["remark"]


@pytest.mark.promise(3)
def test_a_form_that_loses_the_claim_inside_the_save_writes_nothing(
    ada: Editor, ben: Editor, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the article, nor what an override writes in the same transaction, as docs/people.md shows."""
    others, plain = Article.objects.exclude(pk=held), EditArticle.write

    def write(self: EditArticle, form: Any, then: Any) -> Any:
        if form.cleaned_data["remark"] == "too late":
            lose(Article.objects.get(pk=held), ben.who)
        with transaction.atomic():
            others.update(remark="seen")
            return plain(self, form, then)

    monkeypatch.setattr(EditArticle, "write", write)
    answer = ada.act(held, "finish", verdict="keep", remark="too late")
    assert answer.status_code == 409
    assert "Ben Okri has held it" in words(answer)
    assert Article.objects.get(pk=held).remark == ""
    assert not others.filter(remark="seen").exists()
    ada.act(ada.mine()[0], "save")
    assert others.filter(remark="seen").exists()


@pytest.mark.promise(3)
def test_a_token_counts_only_for_the_person_it_names(ada: Editor, ben: Editor, held: int) -> None:
    fields = ada.open(held) | {"text": "Ada's words.", "verdict": "keep"}
    before = stored(Article.objects.get(pk=held))
    ben.look()
    for token in (fields["taskclaim_token"], "", "nonsense"):
        answer = ben.send(address(held), **fields | {"taskclaim_token": token}, act="finish")
        assert answer.status_code == 409
    assert stored(Article.objects.get(pk=held)) == before


def test_skip_puts_the_article_off_and_writes_nothing(ada: Editor, held: int) -> None:
    fields = ada.open(held) | {"text": "Thrown away."}
    ada.send(address(held), **fields, act="skip")
    row = Article.objects.get(pk=held)
    assert (facts(row).status, row.text) == ("open", "Text 0.")
    assert held not in ada.fetch()
    late = words(ada.send(address(held), **fields, act="skip"))
    assert re.search(r"It was put off until [\w.,: ]+, and nobody gets it before\.", late)
    assert 'value="take"' not in late


def test_hand_over_saves_and_passes_on(
    ada: Editor, ben: Editor, held: int, settings: Any, django_user_model: Any
) -> None:
    """Also to somebody with a large number."""
    settings.USE_THOUSAND_SEPARATOR = True
    number = ben.user.pk + 10_000
    django_user_model.objects.create_user("carl", pk=number).groups.set(ben.user.groups.all())
    page = words(ada.act(held, "hand_over"))
    assert "Choose a colleague" in page
    assert f'<option value="{number}">' in page
    ada.act(held, "hand_over", text="Half done.", taskclaim_to=ben.user.pk)
    row = Article.objects.get(pk=held)
    assert (row.text, facts(row).claimed_by) == ("Half done.", ben.who)
    assert held in ben.mine()
    assert held not in ada.mine()


def test_a_free_article_is_taken_from_its_page(
    ada: Editor, ben: Editor, articles: list[Article]
) -> None:
    pk = articles[7].pk
    for turn, is_paused in ((pause, True), (resume, False)):
        turn(Article, using="default")
        page = words(ben.look(address(pk)))
        assert "nobody holds it" in page
        assert ("at the moment: paused." in page) == ('value="take"' not in page) == is_paused
    ben.send(address(pk), act="take")
    assert ben.mine() == [pk]
    lapse(pk)
    assert re.search(
        r"Ben Okri has held it since [\w.,: ]+, with a lease until [\w.,: ]+\.",
        words(ada.look(address(pk))),
    )


# In a transaction for each request


@pytest.fixture
def atomic_requests(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        for alias in connections:
            patch.setitem(connections[alias].settings_dict, "ATOMIC_REQUESTS", True)
        yield


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
@pytest.mark.usefixtures("atomic_requests")
def test_every_act_stands_by_the_time_its_page_is_shown(
    ada: Editor, ben: Editor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the page that answers breaks."""
    ada.client.raise_request_exception = False
    ada.look()
    with monkeypatch.context() as patch:
        patch.setattr(MyArticles, "get_context_data", lambda self, **kwargs: 1 / 0)
        patch.setattr(MyArticles, "render_to_response", lambda self, *args, **kwargs: 1 / 0)
        ada.send(act="more")
    held, skipped = ada.mine()[:2]
    ada.act(skipped, "skip")
    assert facts(Article.objects.get(pk=skipped)).status == "open"
    ada.act(held, "hand_over", text="Half done.", taskclaim_to=ben.user.pk)
    assert facts(Article.objects.get(pk=held)).claimed_by == ben.who
    late = ben.open(held) | {"verdict": "mend", "text": "Late."}
    ben.act(held, "finish", verdict="keep")
    row = Article.objects.get(pk=held)
    assert (row.text, row.verdict, facts(row).status) == ("Half done.", "keep", "complete")
    assert ben.send(address(held), **late, act="save").status_code == 409
    assert Article.objects.get(pk=held).text == "Half done."
