"""Which rows a worker is for: ``country=NZ`` and the like, as an operator writes it, tried against the model.

Everything that can be wrong is found before a worker starts, without asking the database.
"""

import datetime
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from django.conf import settings
from django.core.exceptions import FieldError, ValidationError
from django.db import models
from django.db.models.constants import LOOKUP_SEP
from django.db.models.sql import Query
from django.utils.timezone import is_naive, make_aware

from django_taskclaim.columns import claim_columns
from django_taskclaim.handlers import Handler
from django_taskclaim.querysets.scope import refuse_unclaimable

#: An optional ``app.Model:``, then lookup, equals sign, value.
_SHAPE = re.compile(r"(?:(?P<label>\w+\.\w+):)?(?P<lookup>\w+)=(?P<value>.*)", re.DOTALL)

_TRUTHS = {
    **dict.fromkeys(("true", "t", "yes", "y", "1"), True),
    **dict.fromkeys(("false", "f", "no", "n", "0"), False),
}

#: What a claim itself decides, by role: no open row can be told apart by it.
_DECIDED = ("status", "claimed_by", "claimed_at", "expires_at", "completed_at")

#: The widest whole number that a database keeps.
_WIDEST = 2**63


class SelectionError(ValueError):
    """A filter that cannot be meant; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class Selection:
    """One ``--filter``, taken apart."""

    text: str
    #: The model that alone it is for; empty for all.
    label: str
    lookup: str
    value: str

    @classmethod
    def of(cls, text: str) -> "Selection":
        """Take *text* apart; SelectionError where it has not the shape ``lookup=value``."""
        match = _SHAPE.fullmatch(text)
        if match is None:
            raise SelectionError(
                f"{text!r} is no filter; write lookup=value, country=NZ for example, or app.Model:country=NZ"
            )
        return cls(text, match["label"] or "", match["lookup"], match["value"])

    def concerns(self, model: type[models.Model]) -> bool:
        return self.label.lower() in ("", model._meta.label_lower)

    def condition(self, model: type[models.Model], *, of_claims: bool = True) -> models.Q:
        """Return the condition as the ORM understands it; SelectionError with what is wrong with it.

        That of claims may look neither at many rows for one nor at what a claim decides.
        """
        try:
            target = _Target(model, self.lookup)
            if of_claims:
                target.refuse_what_no_claim_can_ask()
            return models.Q((self.lookup, target.converted(self.value)))
        except SelectionError as error:
            raise SelectionError(f"{self.text}: {error}") from error


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
        narrower = rows.filter(*conditions)
    except (TypeError, ValueError, FieldError, ValidationError) as error:
        raise SelectionError(f"{handler.model._meta.label}: {_sentence(error)}") from error
    return replace(handler, queryset=narrower)


class _Target:
    """What a lookup compares: a field at the end of a path, what is made of it, and how it is compared."""

    def __init__(self, model: type[models.Model], lookup: str) -> None:
        self.model = model
        self.lookup = lookup
        self.steps, self.last, self.field, rest = self._walk()
        self.comparison, self.output = self._comparison(rest)

    def refuse_what_no_claim_can_ask(self) -> None:
        """Raise SelectionError for a filter by which a worker cannot claim."""
        self._refuse_many(self.steps)
        self._refuse_decided(self.steps)

    # The path

    def _walk(self) -> tuple[list[Any], Any, Any, list[str]]:
        """Return the steps to other tables, the last field named, the column it stands for, and what follows."""
        names = self.lookup.split(LOOKUP_SEP)
        try:
            steps, last, targets, rest = Query(self.model).names_to_path(names, self._meta)
        except FieldError as error:
            raise SelectionError(
                f"{self._meta.label} has no field {names[0]!r}{_meant(names[0], _names(self.model))}"
            ) from error
        if len(targets) != 1 or isinstance(targets[0], models.CompositePrimaryKey):
            columns = ", ".join(field.name for field in self._meta.pk_fields)
            raise SelectionError(f"a composite key is no single value; filter by {columns}")
        return list(steps), last, targets[0], list(rest)

    @property
    def _meta(self) -> Any:
        return self.model._meta

    def _refuse_many(self, steps: list[Any]) -> None:
        if any(step.m2m for step in steps):
            raise SelectionError(
                "it looks at many other rows for one, where a claim could come upon that one twice; give the handler a"
                " queryset with Exists()"
            )

    def _refuse_decided(self, steps: list[Any]) -> None:
        """Refuse a condition on what the claim of this very row decides; another row's claim may be looked at."""
        columns = claim_columns(self.model)
        decided = [getattr(columns, role) for role in _DECIDED]
        own = all(step.direct and _leads_to_parent(step) for step in steps)
        if own and self.field in decided:
            raise SelectionError(
                f"{self.field.name} tells no open row from another, and a worker claims no others"
            )

    # The comparison

    def _comparison(self, names: list[str]) -> tuple[Any, Any]:
        """Return the class of the lookup and the field whose values it takes."""
        side: Any = self.field.get_col(self.field.model._meta.db_table)
        *transforms, last = names or ["exact"]
        for name in transforms:
            side = self._transformed(side, name)
        found = side.get_lookup(last)
        if found is None:
            side = self._transformed(side, last)
            found = side.get_lookup("exact")
        return found, side.output_field

    def _transformed(self, side: Any, name: str) -> Any:
        transform = side.get_transform(name)
        if transform is None:
            raise self._unknown(name, side.output_field)
        return transform(side)

    def _unknown(self, name: str, field: Any) -> SelectionError:
        before, _, _ = self.lookup.partition(f"{LOOKUP_SEP}{name}")
        known = set(field.get_lookups())
        if name in known:
            return SelectionError(f"{name!r} compares, so nothing can follow it")
        if self.last.is_relation and field is self.field:
            known.update(_names(self.last.related_model))
        return SelectionError(f"{before} has no lookup {name!r}{_meant(name, known)}")

    # The value

    def converted(self, text: str) -> Any:
        """Return what the comparison takes; SelectionError where *text* is no such value."""
        name = self.comparison.lookup_name
        if name == "isnull":
            return self._truth(text)
        if name == "in":
            return [self._value(part) for part in text.split(",")]
        if name == "range":
            parts = text.split(",")
            if len(parts) != 2:
                raise SelectionError(f"a range has two ends, as in {self.lookup}=1,9")
            return tuple(self._value(part) for part in parts)
        return self._value(text) if self.comparison.prepare_rhs else text

    def _truth(self, text: str) -> bool:
        if text.lower() not in _TRUTHS:
            raise SelectionError(f"{text!r} is neither true nor false")
        return _TRUTHS[text.lower()]

    def _value(self, text: str) -> Any:
        field = self.output.target_field if self.output.is_relation else self.output
        if isinstance(field, models.BooleanField):
            return self._truth(text)
        if isinstance(field, models.JSONField):
            return _json(text)
        try:
            value = field.to_python(text)
            text.encode()
        except (TypeError, ValueError, ValidationError, ArithmeticError) as error:
            raise self._unfit(text, field) from error
        if value is None or (isinstance(value, int) and not -_WIDEST <= value < _WIDEST):
            raise self._unfit(text, field)
        return _aware(value)

    def _unfit(self, text: str, field: Any) -> SelectionError:
        missing = not text and self.comparison.lookup_name == "exact"
        advice = f"; for NULL write {self.lookup}__isnull=true" if missing else ""
        return SelectionError(
            f"{text!r} is no value for {self.lookup} ({type(field).__name__}){advice}"
        )


def _leads_to_parent(step: Any) -> bool:
    return bool(getattr(step.join_field.remote_field, "parent_link", False))


def _names(model: type[models.Model]) -> Iterator[str]:
    """Yield the names by which a filter can look at a row, or beyond it at one other row."""
    yield "pk"
    for field in model._meta.get_fields():
        if not (field.one_to_many or field.many_to_many):
            yield field.name


def _meant(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _json(text: str) -> Any:
    """Return the JSON that *text* is, or the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _aware(value: Any) -> Any:
    """Give a moment without a zone the project's, as forms do."""
    naive = isinstance(value, datetime.datetime) and settings.USE_TZ and is_naive(value)
    return make_aware(value) if naive else value


def _sentence(error: Exception) -> str:
    messages = error.messages if isinstance(error, ValidationError) else [str(error)]
    return messages[0].rstrip(".")
