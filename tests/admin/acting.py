"""Acts of the admin as a browser performs them: their addresses, what is sent, and what is said and recorded."""

from typing import Any

from django.contrib.admin.utils import quote
from django.contrib.messages import get_messages
from django.test import Client
from django.urls import reverse

from django_taskclaim.control.models import OperatorAct
from tests.testapp.models import (
    Child,
    ClaimOnly,
    HiddenRows,
    Photo,
    PrefixedOwnStatus,
    TextKey,
    UuidKey,
)

MODELS = [Photo, ClaimOnly, UuidKey, TextKey, PrefixedOwnStatus, Child, HiddenRows]


def address(model: Any, page: str = "changelist", *args: Any) -> str:
    return reverse(f"admin:testapp_{model._meta.model_name}_{page}", args=args)


def act_on(model: Any, act: str, row: Any = None) -> str:
    args = () if row is None else (quote(row.pk),)
    return address(model, f"claim_{act.replace('-', '_')}", *args)


def said(answer: Any) -> str:
    return " ".join(str(message) for message in get_messages(answer.wsgi_request))


def chosen(action: str, *rows: Any, **more: Any) -> dict[str, Any]:
    return {"action": action, "_selected_action": [str(row.pk) for row in rows], **more}


def all_of(action: str, row: Any, **more: Any) -> dict[str, Any]:
    return chosen(action, row, select_across="1", **more)


def answered(client: Client, url: str, answers: dict[str, Any] | None = None) -> Any:
    """Open the page of a button, and answer it as a browser does."""
    return client.post(url, {**shown_on(client.get(url)), **(answers or {})})


def shown_on(page: Any) -> dict[str, Any]:
    """Return the hidden fields that a browser sends back."""
    return dict(page.context["hidden"])


def acts() -> list[tuple[Any, ...]]:
    fields = ("model", "act", "rows", "by", "reason", "key")
    return list(OperatorAct.objects.order_by("id").values_list(*fields))
