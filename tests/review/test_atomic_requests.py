"""The review pages under ``ATOMIC_REQUESTS``, with real commits: each act stands by the time its page is shown."""

from collections.abc import Iterator
from typing import Any

import pytest
from articles.models import Article
from django.db import connections
from django.urls import resolve

from django_taskclaim.control.models import OperatorAct
from tests.behaviour.support import facts
from tests.review.conftest import Editor

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])


@pytest.fixture(autouse=True)
def atomic_requests(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Taken back before the test's end closes connections.
    with monkeypatch.context() as patch:
        for alias in connections:
            patch.setitem(connections[alias].settings_dict, "ATOMIC_REQUESTS", True)
        yield


@pytest.fixture
def held(ada: Editor) -> int:
    ada.mine()
    ada.send(act="more")
    return ada.mine()[0]


def address(pk: int) -> str:
    return f"/articles/{pk}/"


@pytest.mark.parametrize("path", ["/articles/", "/articles/1/"])
def test_no_page_is_a_transaction_on_any_database(path: str) -> None:
    view: Any = resolve(path).func
    assert view._non_atomic_requests == {"default", "other"}


def test_every_act_of_an_editor_is_done_as_the_page_says(
    ada: Editor, ben: Editor, held: int
) -> None:
    """Save, skip, hand over, take, take over and finish, one after the other, on one article or the next."""
    skipped = ada.mine()[1]
    ada.send(address(skipped), **ada.open(skipped), act="skip")
    assert facts(Article.objects.get(pk=skipped)).status == "open"

    ada.send(address(held), **ada.open(held) | {"text": "Mended."}, act="save")
    assert Article.objects.get(pk=held).text == "Mended."
    given = ada.open(held) | {"text": "Half done.", "taskclaim_to": ben.user.pk}
    ada.send(address(held), **given, act="hand_over")
    assert facts(Article.objects.get(pk=held)).claimed_by == ben.who

    ada.look(address(held))
    seen = {"taskclaim_seen": ada.page.context["seen"], "taskclaim_reason": "he is ill"}
    ada.send(address(held), act="take_over", **seen)
    assert facts(Article.objects.get(pk=held)).claimed_by == ada.who
    assert OperatorAct.objects.get(act="take over").reason == "he is ill"

    ada.send(address(held), **ada.open(held) | {"verdict": "keep"}, act="finish")
    row = Article.objects.get(pk=held)
    assert (row.text, row.verdict, facts(row).status) == ("Half done.", "keep", "complete")
    free = Article.objects.open().exclude(pk=skipped).first()
    assert free is not None
    ben.look(address(free.pk))
    ben.send(address(free.pk), act="take")
    assert facts(free).claimed_by == ben.who


def test_a_late_form_is_refused_and_undoes_nothing_of_the_others(
    ada: Editor, ben: Editor, held: int
) -> None:
    """The answer is an error page, and what the other did stands all the same."""
    fields = ada.open(held) | {"text": "Ada's words.", "verdict": "keep"}
    Article.objects.filter(pk=held).take_over(by=ben.who, reason="test")
    answer = ada.send(address(held), **fields, act="finish")
    assert answer.status_code == 409
    row = Article.objects.get(pk=held)
    assert (facts(row).claimed_by, row.text) == (ben.who, f"Text {row.source}.")


def test_a_page_that_breaks_after_the_claim_keeps_the_claim(
    ada: Editor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the rows would be free again although a page, or a retry of it, has shown them."""
    from articles.views import MyArticles

    ada.client.raise_request_exception = False
    ada.mine()
    with monkeypatch.context() as patch:
        patch.setattr(MyArticles, "get_context_data", lambda self, **kwargs: 1 / 0)
        patch.setattr(MyArticles, "render_to_response", lambda self, *args, **kwargs: 1 / 0)
        ada.send(act="more")
    assert Article.objects.held_by(ada.who).count() == 5
    assert len(ada.mine()) == 5
