"""What the fenced verbs set: for each, the assignments of its one UPDATE."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from django.db import models

from django_taskclaim.dialects.statements import SQL, value
from django_taskclaim.fields import CRASHED, AnyField
from django_taskclaim.querysets.scope import Desk
from django_taskclaim.states import Status
from django_taskclaim.tokens import carried_claim

#: Given the rows of one statement, what it sets.
Assignments = Callable[[Desk, Sequence[Any]], Sequence[SQL]]


def complete_assignments(names: Sequence[str]) -> Assignments:
    """Return what completing sets, the user's own columns *names* included."""

    def assignments(desk: Desk, rows: Sequence[Any]) -> list[SQL]:
        return [*_results(desk, rows, names), *_completion(desk, rows)]

    return assignments if names else _completion


def _completion(desk: Desk, rows: Sequence[Any]) -> Sequence[SQL]:
    """Return what every completion sets, which is the same for all rows."""
    table, columns = desk.table, desk.columns

    def spell() -> tuple[SQL, ...]:
        return (
            table.assign(columns.status, SQL(f"'{Status.COMPLETE.value}'")),
            *_done_now(desk),
            table.assign(columns.expires_at, SQL("NULL")),
        )

    # By the model's columns: a child may have one that the owner of the table has not.
    return table.spelt(columns, spell)


def clear_assignments(names: Sequence[str], pause: timedelta) -> Assignments:
    """Return what opens a row again that is done, due *pause* later, the user's own columns *names* included."""

    def assignments(desk: Desk, rows: Sequence[Any]) -> list[SQL]:
        table, columns = desk.table, desk.columns
        as_new = (columns.attempts, columns.last_error, columns.error_class)
        # Also without a pause: the rows done last stand behind all others that are due.
        due = (
            [] if columns.not_before is None else [(columns.not_before, desk.dialect.later(pause))]
        )
        return [
            *(
                table.assign(field, table.bound(field, field.get_default()))
                for field in as_new
                if field
            ),
            *(table.assign(field, moment) for field, moment in due),
            *_done_now(desk),
            *_results(desk, rows, names),
            *open_again(desk),
        ]

    return assignments


def _done_now(desk: Desk) -> list[SQL]:
    field = desk.columns.completed_at
    return [] if field is None else [desk.table.assign(field, SQL(desk.dialect.now))]


def _results(desk: Desk, rows: Sequence[Any], names: Sequence[str]) -> list[SQL]:
    """Return what writes those of *names* that are on the claim table, each row's own value."""
    table = desk.table
    return [
        table.assign(field, table.by_key(field, _values(rows, field)))
        for field in _own_fields(desk, names)
    ]


def _values(rows: Sequence[Any], field: AnyField) -> list[tuple[Any, Any]]:
    return [(carried_claim(row).pk, field.pre_save(row, add=False)) for row in rows]


def _own_fields(desk: Desk, names: Sequence[str]) -> list[AnyField]:
    fields = [desk.model._meta.get_field(name) for name in names]
    return [field for field in fields if field.model is desk.columns.owner]  # type: ignore[misc]


def write_inherited(names: Sequence[str]) -> Callable[[Desk, list[Any]], None] | None:
    """Return what writes those of *names* that live on another table of the model, inside the same transaction."""
    if not names:
        return None

    def write(desk: Desk, rows: list[Any]) -> None:
        for row in rows:
            by_model: dict[type[models.Model], list[Any]] = {}
            for name in names:
                field: Any = type(row)._meta.get_field(name)
                if field.model is not desk.columns.owner:
                    by_model.setdefault(field.model, []).append(field)
            for model, fields in by_model.items():
                key = row._get_pk_val(model._meta)
                values = [
                    (field, None, _plain(field, field.pre_save(row, add=False))) for field in fields
                ]
                models.QuerySet(model, using=desk.alias).filter(pk=key)._update(values)  # type: ignore[attr-defined]

    return write


def _plain(field: AnyField, given: Any) -> Any:
    if hasattr(given, "resolve_expression"):
        raise TypeError(
            f"update_fields writes values; {field.name} holds the expression {given!r}."
        )
    return given


def open_again(desk: Desk) -> list[SQL]:
    """Return what puts a row back: open, held by nobody, one iteration on."""
    table, columns = desk.table, desk.columns
    return [
        table.assign(columns.status, SQL(f"'{Status.OPEN.value}'")),
        table.assign(columns.claimed_at, SQL("NULL")),
        table.assign(columns.expires_at, SQL("NULL")),
        table.assign(columns.iteration, SQL(f"{table.column(columns.iteration)} + 1")),
        table.assign(columns.claimed_by, SQL("NULL")),
    ]


def pass_on(desk: Desk, holder: str, lease: timedelta) -> list[SQL]:
    """Return what gives a running row to another holder, for *lease* at least, as a claim of its own."""
    table, columns = desk.table, desk.columns
    return [
        table.assign(columns.claimed_at, SQL(desk.dialect.now)),
        desk.dialect.extension(table, lease),
        table.assign(columns.iteration, SQL(f"{table.column(columns.iteration)} + 1")),
        table.assign(columns.claimed_by, value(holder)),
    ]


def release_assignments(delay: timedelta | None) -> Assignments:
    """Return what giving back sets; without a delay the row keeps its place in the order."""

    def assignments(desk: Desk, rows: Sequence[Any]) -> list[SQL]:
        waiting = desk.columns.not_before
        later = (
            []
            if delay is None or waiting is None
            else [desk.table.assign(waiting, desk.dialect.later(delay))]
        )
        return [*later, *open_again(desk)]

    return assignments


def set_apart(desk: Desk, rows: Sequence[Any]) -> list[SQL]:
    """Return what gives a row back with the mark under which it is claimed alone, where the model has one."""
    return [*crash_mark(desk), *open_again(desk)]


def begin_assignments(lease: timedelta) -> Assignments:
    """Return what marks a row that may kill its worker as begun, with its whole *lease* from here."""

    def assignments(desk: Desk, rows: Sequence[Any]) -> list[SQL]:
        return [*crash_mark(desk), desk.dialect.extension(desk.table, lease)]

    return assignments


def crash_mark(desk: Desk) -> list[SQL]:
    """Return what marks a row to be claimed alone; nothing for a model without ``not_before``."""
    field = desk.columns.not_before
    return [] if field is None else [desk.table.assign(field, desk.table.bound(field, CRASHED))]


def failure_assignments(
    waits: dict[int, timedelta | None], error_class: str, error_text: str
) -> Assignments:
    """Return what failing sets for rows that are all final or all tried again; each waits a time of its own."""

    def assignments(desk: Desk, rows: Sequence[Any]) -> list[SQL]:
        table, columns = desk.table, desk.columns
        told = [
            *([table.assign(columns.last_error, value(error_text))] if columns.last_error else []),
            *(
                [table.assign(columns.error_class, value(error_class))]
                if columns.error_class
                else []
            ),
            *(
                [table.assign(columns.attempts, SQL(f"{table.column(columns.attempts)} + 1"))]
                if columns.attempts
                else []
            ),
        ]
        if waits[id(rows[0])] is None:
            return [
                table.assign(columns.status, SQL(f"'{Status.FAILED.value}'")),
                *told,
                table.assign(columns.expires_at, SQL("NULL")),
            ]
        moments = [
            (carried_claim(row).pk, desk.dialect.later(waits[id(row)] or timedelta()))
            for row in rows
        ]
        later = (
            []
            if columns.not_before is None
            else [table.assign(columns.not_before, table.choose(moments))]
        )
        return [*told, *later, *open_again(desk)]

    return assignments
