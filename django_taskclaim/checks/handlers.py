"""Registered handlers: names that exist, querysets that can be claimed from, times that make sense."""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import permutations
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage
from django.db import connections, router

from django_taskclaim.checks.messages import message
from django_taskclaim.columns import claim_columns, has_claim_columns, is_claimable
from django_taskclaim.formatting import format_duration, listed
from django_taskclaim.handlers import WAITS_PER_LEASE, Handler, handler_for
from django_taskclaim.links import is_companion, source_link
from django_taskclaim.policy import LONGEST_LEASE, SHORTEST_LEASE, faults
from django_taskclaim.querysets.results import PREFIX, writable
from django_taskclaim.querysets.scope import refuse_unclaimable

SHORTEST_TIMEOUT = timedelta(seconds=1)
NOTHING_CLAIMED = (
    "Mend that line. Until then no worker runs the function, and nothing claims rows of its model."
)


def check_handlers(**kwargs: Any) -> list[CheckMessage]:
    """E014 for a handler that is not registered; E009, E010, W003, W004 and W009 to W011 for the others."""
    handlers = [handler_for(model) for model in apps.get_models() if is_claimable(model)]
    return [
        # Of columns that are not as they must be, E003 and E005 tell more.
        *(
            message("E014", why, NOTHING_CLAIMED, model)
            for model, why in faults
            if not has_claim_columns(model) or is_claimable(model)
        ),
        *(found for handler in handlers if handler is not None for found in problems_of(handler)),
        *_shared_rows([handler for handler in handlers if handler is not None]),
    ]


def _shared_rows(handlers: Sequence[Handler]) -> Iterator[CheckMessage]:
    """W011: a row that two handlers take is done by the one whose worker comes first."""
    for one, other in permutations(handlers, 2):
        model: Any = one.model._meta.concrete_model
        same = other.model._meta.concrete_model is model
        below = not same and model in other.model._meta.all_parents
        if (below and _takes_all(one)) or (
            same and _rank(one) < _rank(other) and (_takes_all(one) or _takes_all(other))
        ):
            name = one.model.__name__
            link: Any = other.model._meta.get_ancestor_link(model) if below else None
            path = (
                f"{link.related_query_name()}=None" if link and link.related_model is model else "…"
            )
            yield message(
                "W011",
                f"{one.name} takes rows of {one.model._meta.label}, and {other.name} those of"
                f" {other.model._meta.label}, which are the same rows: the first worker to claim one decides which"
                " function runs.",
                f"@handler({name}, queryset={name}.objects.filter({path}))"
                + ("  # and a queryset for the other" if same else ""),
                one.model,
            )


def _rank(handler: Handler) -> tuple[bool, str]:
    return handler.model._meta.proxy, handler.name


def _takes_all(handler: Handler) -> bool:
    try:
        return not handler.rows().query.where
    except Exception:
        # E002 and E010 tell of rows that cannot be asked for.
        return False


def problems_of(handler: Handler) -> Iterator[CheckMessage]:
    """Yield what is wrong with one handler."""
    yield from _update_fields(handler)
    yield from _queryset(handler)
    yield from _times(handler)
    yield from _one_writer(handler)
    yield from _series(handler)


def _update_fields(handler: Handler) -> Iterator[CheckMessage]:
    guarded = claim_columns(handler.model).guarded_names
    places = [handler.model]
    if is_companion(handler.model):
        try:
            places.append(source_link(handler.model).source)
        except TypeError:
            # E051 says so.
            return
    if is_claimable(places[-1]):
        guarded |= claim_columns(places[-1]).guarded_names
    names = {name.removeprefix(PREFIX) for name in handler.update_fields}
    ours = sorted(names & guarded)
    if ours:
        yield message(
            "E009",
            f"update_fields of {handler.name} names {listed(ours)}: claim columns are written by the verbs alone.",
            "Leave them out; completing the row writes them.",
            handler.model,
        )
    unknown = sorted(names.difference(guarded, *(writable(model) for model in places)))
    if unknown:
        known = [
            field.name
            for model in places
            for field in model._meta.concrete_fields
            if field.name in writable(model) - guarded
        ]
        either = " or ".join(model._meta.label for model in places)
        yield message(
            "E009",
            f"update_fields of {handler.name} names {listed(unknown)}: {either} has no such column to write.",
            f"Columns that can be written: {', '.join(sorted(known))}.",
            handler.model,
        )


def _queryset(handler: Handler) -> Iterator[CheckMessage]:
    rows: Any = handler.queryset
    if rows is None:
        return
    reason = ""
    if rows.model._meta.concrete_model is not handler.model._meta.concrete_model:
        reason = f"is one of {rows.model._meta.label}, not of {handler.model._meta.label}"
    elif not hasattr(rows, "claim_batch"):
        reason = f"is a {type(rows).__name__} without claim_batch()"
    else:
        try:
            refuse_unclaimable(rows)
        except TypeError as error:
            reason = f"cannot be claimed from: {error}".rstrip(".")
    if reason:
        yield message(
            "E010",
            f"The queryset of {handler.name} {reason}.",
            f"queryset={handler.model.__name__}.objects.filter(…), without slices, unions, values() and aggregates",
            handler.model,
        )


def _times(handler: Handler) -> Iterator[CheckMessage]:
    lease, timeout = handler.lease, handler.timeout
    if not SHORTEST_LEASE <= lease <= LONGEST_LEASE:
        short = lease < SHORTEST_LEASE
        yield message(
            "W003",
            f"Rows of {handler.model._meta.label} are claimed for {lease.total_seconds():g} s: "
            + (
                "one slow renewal, and a running row is lost."
                if short
                else f"rows of a worker that dies stay stuck for {format_duration(lease)}. Running rows are renewed, so"
                " a lease need not be as long as the work."
            ),
            f"@handler({handler.model.__name__}, lease=60)",
            handler.model,
        )
    if timeout is not None and timeout < SHORTEST_TIMEOUT:
        yield message(
            "W004",
            f"{handler.name} may run for {timeout.total_seconds():g} s a row only; timeout is in seconds.",
            f"@handler({handler.model.__name__}, timeout=900)",
            handler.model,
        )


def _series(handler: Handler) -> Iterator[CheckMessage]:
    """Look at the order in which rows of one key are done."""
    column, order = handler.policy.serial_by, handler.policy.order_by
    last = claim_columns(handler.model).key[-1]
    if column is None or order or _counts_up(last):
        return
    yield message(
        "W010",
        f"Rows of one {column} are done in the order of their key, and {last.name} is a {type(last).__name__}, which"
        " does not tell which row came first.",
        f'@handler({handler.model.__name__}, serial_by="{column}", order_by=["created_at"])  # or another column of'
        " yours that does",
        handler.model,
    )


def _counts_up(field: Any) -> bool:
    """Say whether values of a key, or of the key that it points to, are counted up."""
    target = field.target_field if field.is_relation else field
    return any(kind in target.get_internal_type() for kind in ("Auto", "Integer"))


def _one_writer(handler: Handler) -> Iterator[CheckMessage]:
    """Look at atomic handlers where an open transaction keeps everybody else from writing."""
    alias = router.db_for_write(handler.model)
    # Of an alias that is none, E006 tells.
    if alias not in connections or not handler.blocks_writers(alias):
        return
    most = handler.lease / WAITS_PER_LEASE
    if handler.timeout is None or handler.timeout > most:
        yield message(
            "W009",
            f"{handler.name} is atomic, and {connections[alias].display_name} has one writer: while a row runs, no"
            f" lease on the database {alias!r} can be renewed, no row claimed and none completed.",
            f"@handler({handler.model.__name__}, atomic=True, timeout={most.total_seconds():g})  # a quarter of the"
            " lease at most",
            handler.model,
        )
