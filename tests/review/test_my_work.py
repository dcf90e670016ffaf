"""The list: what I hold, kept and extended by a reload, topped up by a button, and why there is not more."""

from datetime import timedelta
from typing import Any

import pytest
from articles.models import Article
from articles.views import MyArticles
from django.db import connections
from django.http import HttpResponse
from django.test import Client, RequestFactory
from django.utils import timezone

from django_taskclaim.switch import pause, resume
from tests.behaviour.support import clock, facts, set_raw
from tests.review.conftest import Editor

pytestmark = pytest.mark.django_db


def test_a_get_claims_nothing_and_the_button_fetches_five(ada: Editor) -> None:
    assert ada.mine() == []
    ada.send(act="more")
    mine = ada.mine()
    assert len(mine) == 5
    assert mine == [row.pk for row in Article.objects.held_by(ada.who).order_by("pk")]


def test_a_reload_keeps_the_set_and_extends_it(ada: Editor) -> None:
    ada.mine()
    ada.send(act="more")
    mine = ada.mine()
    row = Article.objects.get(pk=mine[0])
    set_raw(row, "expires_at", clock("+1 MINUTE"))
    assert ada.mine() == mine
    assert facts(row).expires_at - timezone.now() > timedelta(minutes=20)
    ada.send(act="more")
    assert ada.mine() == mine


def test_two_editors_never_see_one_article_and_the_rest_is_accounted_for(
    ada: Editor, ben: Editor
) -> None:
    for editor in (ada, ben):
        editor.mine()
        editor.send(act="more")
    assert not set(ada.mine()) & set(ben.mine())
    assert len(ben.mine()) == 3
    page = ben.look("/articles/?asked").content.decode()
    assert "5 are held by others" in page
    assert "next free" in page
    assert "Ada Lovelace, until" in " ".join(page.split())


def test_a_lapsed_article_moves_on_without_any_worker_or_cron_job(ada: Editor, ben: Editor) -> None:
    for editor in (ada, ben):
        editor.mine()
        editor.send(act="more")
    lapsed = ada.mine()[:2]
    for pk in lapsed:
        set_raw(Article.objects.get(pk=pk), "expires_at", clock("-1 MINUTE"))
    ben.send(act="more")
    assert set(lapsed) <= set(ben.mine())
    assert not set(lapsed) & set(ada.mine())


def test_what_is_the_persons_own_is_not_put_back_by_asking(ada: Editor) -> None:
    ada.mine()
    ada.send(act="more")
    mine = ada.mine()
    Article.objects.filter(pk=mine[0]).take_over(by="user:0", reason="test")
    for pk in mine[1:]:
        set_raw(Article.objects.get(pk=pk), "expires_at", clock("-1 MINUTE"))
    ada.send(act="more")
    assert set(mine[1:]) <= set(ada.mine())
    assert {facts(Article.objects.get(pk=pk)).iteration for pk in mine[1:]} == {0}


def test_with_claims_on_get_a_look_tops_up(ada: Editor, rf: RequestFactory) -> None:
    request = rf.get("/articles/")
    request.user = ada.user
    answer = MyArticles.as_view(claims_on_get=True, batch_size=2)(request)
    assert len(answer.context_data["rows"]) == 2


def test_while_paused_the_set_stays_and_the_page_says_so(ada: Editor, ben: Editor) -> None:
    ada.mine()
    ada.send(act="more")
    pause(Article, using="default")
    assert len(ada.mine()) == 5
    assert ben.mine() == []
    ben.send(act="more")
    assert "Paused" in ben.page.content.decode()
    resume(Article, using="default")


def test_nobody_gets_rows_without_logging_in_or_without_csrf(ada: Editor) -> None:
    stranger = Client()
    for answer in (stranger.get("/articles/"), stranger.post("/articles/", {"act": "more"})):
        assert answer.status_code in (302, 403)
    assert ada.client.post("/articles/", {"act": "more"}).status_code == 403
    ada.look()
    assert ada.send(act="nonsense").status_code == 400
    assert Article.objects.open().count() == 8


def test_the_pages_work_under_atomic_requests(ada: Editor, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim refuses to run in its transaction, and a page that fails would undo what was shown before."""
    for alias in connections:
        monkeypatch.setitem(connections[alias].settings_dict, "ATOMIC_REQUESTS", True)
    ada.mine()
    ada.send(act="more")
    mine = ada.mine()
    assert len(mine) == 5
    fields = ada.open(mine[0])
    ada.send(f"/articles/{mine[0]}/", **fields | {"verdict": "keep"}, act="finish")
    assert facts(Article.objects.get(pk=mine[0])).status == "complete"


# The ping


def ping(editor: Editor, claims: list[tuple[Any, Any]]) -> Any:
    answer: HttpResponse = editor.send(
        act="ping", pk=[pk for pk, _ in claims], token=[token for _, token in claims]
    )
    assert answer.status_code == 200
    return answer.json()  # type: ignore[attr-defined]


def test_a_ping_renews_what_stands_and_says_what_became_of_the_rest(
    ada: Editor, ben: Editor
) -> None:
    ada.mine()
    ada.send(act="more")
    claims = [(str(one["row"].pk), str(one["row"].claim.token)) for one in ada.page.context["rows"]]
    kept, taken, gone, finished, _ = (Article.objects.get(pk=pk) for pk, _ in claims)
    set_raw(kept, "expires_at", clock("+1 MINUTE"))
    Article.objects.filter(pk=taken.pk).take_over(by=ben.who, reason="test")
    Article.objects.holdings(ben.who)[0].claim.complete()
    Article.objects.filter(pk=finished.pk).take_over(by=ben.who, reason="test")
    Article.objects.filter(pk=gone.pk).delete()
    told = ping(ada, claims)
    assert [one["pk"] for one in told["held"]] == [claims[0][0], claims[4][0]]
    assert all(1700 < one["left"] <= 1800 for one in told["held"])
    assert facts(kept).expires_at - timezone.now() > timedelta(minutes=20)
    why = {one["pk"]: one["why"] for one in told["lost"]}
    assert "Ben Okri finished it" in why[str(taken.pk)]
    assert "Ben Okri has held it" in why[str(finished.pk)]
    assert why[str(gone.pk)] == "It is gone."


def test_a_ping_renews_nothing_of_others_and_survives_nonsense(ada: Editor, ben: Editor) -> None:
    ben.mine()
    ben.send(act="more")
    row = ben.page.context["rows"][0]["row"]
    before = facts(row).expires_at
    ada.look()
    told = ping(ada, [(row.pk, str(row.claim.token)), ("x", "0:user:1"), (row.pk, "nonsense")])
    assert told["held"] == []
    assert len(told["lost"]) == 3
    assert facts(row).expires_at == before
