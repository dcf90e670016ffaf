"""Which rows a worker is for: ``country=NZ`` and the like, which are passed to ``filter()``.

Everything that can be wrong is found before a worker starts, without asking the database.
"""

import datetime
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from django.conf import settings
from django.core.exceptions import FieldError, ValidationError
from django.db import models
from django.db.models.constants import LOOKUP_SEP
from django.db.models.sql import Query
from django.utils.timezone import is_naive, make_aware

from django_taskclaim.columns import claim_columns
from django_taskclaim.fields import MomentField
from django_taskclaim.handlers import Handler
from django_taskclaim.querysets.scope import refuse_unclaimable

#: Lookup, equals sign, value.
_SHAPE = re.compile(r"(\w+)=(.*)", re.DOTALL)

_BOOLEANS = {"true": True, "false": False}

#: Lookups that compare the column itself with values of its own type.
_COMPARISONS = {"exact", "gt", "gte", "lt", "lte", "in", "range"}

#: What a claim itself decides, by role: all open rows have the same value there.
_DECIDED = ("status", "claimed_by", "claimed_at", "expires_at", "completed_at")


class SelectionError(ValueError):
    """A filter that makes no sense; the message is one sentence."""


def condition_of(text: str, model: type[models.Model], *, of_claims: bool = True) -> models.Q:
    """Return the condition that *text* is for ``filter()``; SelectionError with what is wrong with it.

    A condition of claims may not look at many rows for one, nor at what a claim decides.
    """
    match = _SHAPE.fullmatch(text)
    if match is None:
        raise SelectionError(f"{text!r} is no filter; write lookup=value, country=NZ for example")
    lookup, value = match.groups()
    try:
        names = lookup.split(LOOKUP_SEP)
        steps, _, (field, *_), rest = Query(model).names_to_path(names, model._meta)
        if of_claims and any(step.m2m for step in steps):
            raise SelectionError(
                "it looks at many other rows for one; give the handler a queryset with Exists()"
            )
        if of_claims and names[0] in _decided_by_claims(model):
            raise SelectionError(
                f"{names[0]} is the same in all open rows, and a worker claims no others"
            )
        condition = models.Q((lookup, _value(field, rest, value)))
        models.QuerySet(model).filter(condition)
    except (FieldError, TypeError, ValueError, ValidationError) as error:
        raise SelectionError(f"{text}: {_sentence(error)}") from error
    return condition


def _decided_by_claims(model: type[models.Model]) -> set[str]:
    columns = claim_columns(model)
    fields = (getattr(columns, role) for role in _DECIDED)
    return {field.name for field in fields if field is not None}


def narrowed(handler: Handler, filters: Sequence[str]) -> Handler:
    """Return the handler with its queryset narrowed to what *filters* select; SelectionError if one is wrong."""
    conditions = [condition_of(text, handler.model) for text in filters]
    if not conditions:
        return handler
    rows = handler.rows()
    try:
        refuse_unclaimable(rows)
    except TypeError as error:
        raise SelectionError(f"{handler.model._meta.label}: {_sentence(error)}") from error
    return replace(handler, queryset=rows.filter(*conditions))


def _value(field: object, rest: Sequence[str], text: str) -> Any:
    """Return what ``filter()`` takes for *text*, where it would not take the text itself."""
    compares = not rest or rest[0] in _COMPARISONS

    def parse(part: str) -> Any:
        if isinstance(field, models.BooleanField) and compares:
            return _BOOLEANS.get(part.lower(), part)
        if isinstance(field, models.JSONField):
            with suppress(ValueError):
                return json.loads(part)
        if isinstance(field, (models.DateTimeField, MomentField)) and compares:
            moment = field.to_python(part)
            naive = isinstance(moment, datetime.datetime) and is_naive(moment)
            return make_aware(moment) if naive and settings.USE_TZ else moment
        return part

    last = rest[-1] if rest else "exact"
    if last == "isnull":
        if text.lower() not in _BOOLEANS:
            raise SelectionError(f"{text!r} is neither true nor false")
        return _BOOLEANS[text.lower()]
    if last not in ("in", "range"):
        return parse(text)
    parts = [parse(part) for part in text.split(",")]
    if last == "range" and len(parts) != 2:
        raise SelectionError("a range has two ends, as in width__range=1,9")
    return parts


def _sentence(error: Exception) -> str:
    messages = error.messages if isinstance(error, ValidationError) else [str(error)]
    return messages[0].rstrip(".")
