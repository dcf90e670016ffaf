"""No word on a page for people that a catalogue could not translate."""

import json
from datetime import timedelta
from typing import Any

import pytest
from articles.models import Article
from django.contrib.auth.models import Permission

from django_taskclaim.states import Status
from django_taskclaim.switch import pause
from tests.behaviour.support import clock, lose, set_raw
from tests.marking import reading_marks, unmarked
from tests.review.conftest import Editor

pytestmark = pytest.mark.django_db(databases=["default", "other"])

#: What the project and its users have named.
THEIRS = [
    r"Articles to review|Log out|\bSite\b|[Mm]y [Aa]rticles?|Article \d|Text \d\.?|[Aa]rticles?\b",
    r"publish as it is|publish with my changes|leave it out|Ada Lovelace|Ben Okri|\b(ada|ben)\b",
    r"\b(Title|Text|Verdict|Remark)\b|(Ada|Ben)('s)?\b|\bwords\.",
]

LIST = "/articles/"


def left_in_english(answer: Any) -> list[str]:
    return unmarked(answer.content.decode(), THEIRS)


def test_the_desk(ada: Editor, ben: Editor) -> None:
    ben.look()
    ben.send(act="more")
    with reading_marks():
        assert left_in_english(ada.look()) == []
        assert left_in_english(ada.send(act="more")) == []
        Article.objects.release(Article.objects.holdings(ada.who), delay=timedelta(days=2))
        assert left_in_english(ada.look(f"{LIST}?asked")) == []
        pause(Article)
        assert left_in_english(ada.look(f"{LIST}?asked")) == []
        Article.objects.all().delete()
        assert left_in_english(ada.look(f"{LIST}?asked")) == []


def test_the_page_of_a_row(ada: Editor, ben: Editor) -> None:
    ada.look()
    ada.send(act="more")
    pk = ada.mine()[0]
    with reading_marks():
        fields = ada.open(pk)
        assert left_in_english(ada.page) == []
        for act in ("save", "finish", "hand_over"):
            assert left_in_english(ada.send(f"{LIST}{pk}/", **fields | {"act": act})) == []


@pytest.mark.parametrize("fate", [*Status.values, "gone", "own"])
def test_a_form_that_came_too_late(ada: Editor, ben: Editor, fate: str) -> None:
    ada.look()
    ada.send(act="more")
    pk = ada.mine()[0]
    fields = ada.open(pk) | {"text": "Ada's words."}
    row = lose(Article.objects.get(pk=pk), ada.who if fate == "own" else ben.who)
    row.text = "Ben's words."
    ends = {
        "open": lambda: row.claim.release(),
        "complete": lambda: row.claim.complete(update_fields=["text"]),
        "failed": lambda: row.claim.fail("no", retry=False),
        "paused": lambda: [row.claim.release(), Article.objects.filter(pk=pk).pause_rows()],
        "processing": lambda: set_raw(row, "expires_at", clock("+200000 SECOND")),
        "gone": lambda: Article.objects.filter(pk=pk).delete(),
    }
    ends.get(fate, lambda: None)()
    with reading_marks():
        answer = ada.send(f"{LIST}{pk}/", **fields, act="save")
        assert (answer.status_code, left_in_english(answer)) == (409, [])
        told = ada.send(LIST, act="ping", pk=pk, token=fields["taskclaim_token"])
        assert [unmarked(one["why"], THEIRS) for one in json.loads(told.content)["lost"]] == [[]]


def test_what_is_refused(ada: Editor, ben: Editor) -> None:
    (row,) = Article.objects.claim_batch(1, claimed_by=ben.who)
    with reading_marks():
        assert left_in_english(ada.look(f"{LIST}{row.pk}/")) == []
        assert left_in_english(ada.send(f"{LIST}{row.pk}/", act="take_over")) == []
        assert left_in_english(ada.send(LIST, act="dance")) == []
        form = {"title": "Title", "taskclaim_token": "0:user:0"}
        for codename in ("change_article", "view_article"):
            ada.user.groups.clear()
            ada.user.user_permissions.set(Permission.objects.filter(codename=codename))
            sent = {"taskclaim_reason": "ben", "taskclaim_to": ada.user.pk}
            for act in ("take_over", "save", "ping"):
                answer = ada.send(f"{LIST}{row.pk}/", **form, **sent, act=act)
                assert left_in_english(answer) == []
