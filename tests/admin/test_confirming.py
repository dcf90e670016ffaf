"""A confirmation page: whoever looks changes nothing, whoever answers may act only if allowed, and only with CSRF."""

from collections.abc import Mapping
from typing import Any

import pytest
from django import forms
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied
from django.http import HttpResponse
from django.test import Client, RequestFactory, override_settings
from django.urls import path

from django_taskclaim.admin.confirming import CONFIRMED, confirm
from tests.urls import urlpatterns as project

pytestmark = pytest.mark.django_db

acts: list[Mapping[str, Any]] = []


class Reason(forms.Form):
    reason = forms.CharField()


def act(answer: Mapping[str, Any]) -> HttpResponse:
    acts.append(answer)
    return HttpResponse("done")


def ask(request: Any, **options: Any) -> Any:
    given: dict[str, Any] = {"allowed": True, "title": "T", "sentence": "S", "act": act, **options}
    return confirm(request, **given)


urlpatterns = [
    *project,
    path("ask/", ask),
    path("why/", lambda request: ask(request, fields=Reason, warning="<script>x</script>")),
    path("action/", lambda request: ask(request, hidden={"action": ["a"], "chosen": ["1", "2"]})),
    path("denied/", lambda request: ask(request, allowed=False)),
]


@pytest.fixture(autouse=True)
def _routes() -> Any:
    acts.clear()
    with override_settings(ROOT_URLCONF=__name__):
        yield


@pytest.mark.parametrize("method", ["get", "head", "options", "put", "delete", "patch"])
def test_no_method_but_post_acts(client: Client, method: str) -> None:
    answer = getattr(client, method)("/ask/")
    assert acts == []
    assert answer.status_code == (200 if method in ("get", "head") else 405)


def test_a_post_acts(client: Client) -> None:
    assert client.post("/ask/").content == b"done"
    assert acts == [{}]


def test_a_post_without_csrf_does_not(client: Client) -> None:
    assert Client(enforce_csrf_checks=True).post("/ask/").status_code == 403
    assert acts == []


@pytest.mark.parametrize("method", ["get", "post"])
def test_who_is_not_allowed_neither_sees_nor_acts(client: Client, method: str) -> None:
    assert getattr(client, method)("/denied/").status_code == 403
    assert acts == []


def test_not_allowed_is_an_exception_for_the_caller() -> None:
    request = RequestFactory().post("/")
    request.user = AnonymousUser()
    with pytest.raises(PermissionDenied):
        ask(request, allowed=False)


def test_an_incomplete_answer_is_asked_again(client: Client) -> None:
    answer = client.post("/why/", {"reason": ""})
    assert acts == []
    assert "This field is required" in answer.content.decode()
    client.post("/why/", {"reason": "because"})
    assert acts == [{"reason": "because"}]


def test_a_page_shown_by_a_post_waits_for_its_own_answer(client: Client) -> None:
    page = client.post("/action/", {"action": "a", "chosen": ["1", "2"]})
    assert acts == []
    text = page.content.decode()
    assert '<input type="hidden" name="chosen" value="2">' in text
    client.post("/action/", {"action": "a", "chosen": ["1", "2"], CONFIRMED: "yes"})
    assert acts == [{}]


def test_an_answer_to_what_is_no_longer_so_is_asked_again(client: Client) -> None:
    late = {"action": "a", "chosen": ["1"], CONFIRMED: "yes"}
    answer = client.post("/action/", late)
    assert acts == []
    assert "changed since the page was shown" in answer.content.decode()
    client.post("/action/", dict(_lists(answer.context["hidden"])))
    assert acts == [{}]


def _lists(pairs: list[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return found


def test_what_is_shown_is_text(client: Client) -> None:
    text = client.get("/why/").content.decode()
    assert "<script>x" not in text
    assert "&lt;script&gt;x" in text
