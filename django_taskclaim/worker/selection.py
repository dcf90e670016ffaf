"""Which rows a worker is for: ``country=NZ`` and the like, which are passed to ``filter()``.

Everything that can be wrong is found before a worker starts, without asking the database.
"""

import datetime
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
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

#: An optional ``app.Model:``, then lookup, equals sign, value.
_SHAPE = re.compile(r"(?:(?P<label>\w+\.\w+):)?(?P<lookup>\w+)=(?P<value>.*)", re.DOTALL)

_BOOLEANS = {"true": True, "false": False}

#: Lookups that compare the column itself with values of its own type.
_COMPARISONS = {"exact", "gt", "gte", "lt", "lte", "in", "range"}

#: What a claim itself decides, by role: all open rows have the same value there.
_DECIDED = ("status", "claimed_by", "claimed_at", "expires_at", "completed_at")


class SelectionError(ValueError):
    """A filter that makes no sense; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class Selection:
    """One ``--filter``, divided into its parts."""

    text: str
    #: The only model that it is for; empty for all.
    label: str
    lookup: str
    value: str

    @classmethod
    def of(cls, text: str) -> "Selection":
        """Divide *text*; SelectionError where it has not the shape ``lookup=value``."""
        match = _SHAPE.fullmatch(text)
        if match is None:
            raise SelectionError(
                f"{text!r} is no filter; write lookup=value, country=NZ for example, or app.Model:country=NZ"
            )
        return cls(text, match["label"] or "", match["lookup"], match["value"])

    def concerns(self, model: type[models.Model]) -> bool:
        """Say whether it narrows the rows of *model*."""
        return self.label.lower() in ("", model._meta.label_lower)

    def condition(self, model: type[models.Model], *, of_claims: bool = True) -> models.Q:
        """Return the condition for ``filter()``; SelectionError with what is wrong with it.

        A condition of claims may not look at many rows for one, nor at what a claim decides.
        """
        try:
            names = self.lookup.split(LOOKUP_SEP)
            steps, _, (field, *_), rest = Query(model).names_to_path(names, model._meta)
            if of_claims and any(step.m2m for step in steps):
                raise SelectionError(
                    "it looks at many other rows for one; give the handler a queryset with Exists()"
                )
            columns = claim_columns(model) if of_claims else None
            if columns and names[0] in {
                getattr(columns, r) and getattr(columns, r).name for r in _DECIDED
            }:
                raise SelectionError(
                    f"{names[0]} is the same in all open rows, and a worker claims no others"
                )
            condition = models.Q((self.lookup, _value(field, rest, self.value)))
            models.QuerySet(model).filter(condition)
        except (FieldError, TypeError, ValueError, ValidationError) as error:
            raise SelectionError(f"{self.text}: {_sentence(error)}") from error
        return condition


def narrowed(handlers: Sequence[Handler], filters: Sequence[str]) -> list[Handler]:
    """Return the handlers with their querysets narrowed to what *filters* select; SelectionError if one is wrong."""
    selections = [Selection.of(text) for text in filters]
    for one in selections:
        if not any(one.concerns(handler.model) for handler in handlers):
            raise SelectionError(f"{one.text}: {one.label} is not among the models to work on")
    return [_narrowed(handler, selections) for handler in handlers]


def _narrowed(handler: Handler, selections: Sequence[Selection]) -> Handler:
    conditions = [one.condition(handler.model) for one in selections if one.concerns(handler.model)]
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
