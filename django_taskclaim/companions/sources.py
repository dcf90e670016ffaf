"""The sources of companions: handed to their handlers, loaded together, each with its claim; and rows without one."""

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import or_
from typing import Any, TypeVar

from django.db import models
from django.db.models import Exists, OuterRef, Q

from django_taskclaim.columns import COMPANION, LINK, source_link
from django_taskclaim.querysets.isolating import Bad, isolate_unreadable
from django_taskclaim.querysets.operating import BulkVerb, LockedRow, in_chunks
from django_taskclaim.querysets.scope import ClaimTarget, is_running

Found = TypeVar("Found", bound="models.QuerySet[Any]")

#: How many keys are compared together where no subquery can.
COMPARED = 400


def load_sources(rows: Sequence[Any]) -> list[Any]:
    """Load the sources of companions, one query for hundreds, and return the rows whose source is gone.

    Afterwards ``row.source`` of the others asks no database. All rows must be of one model and database.
    """
    gone: list[Any] = []
    for start in range(0, len(rows), COMPARED):
        part = rows[start : start + COMPARED]
        link = source_link(type(part[0]))
        gone += link.load(part, link.alias_beside(part[0]._state.db))
    return gone


def load_readable_sources(rows: Sequence[Any]) -> list[Bad[Any]]:
    """Do what ``load_sources`` does, and return the rows whose source cannot be read, each with the error."""
    if not rows:
        return []
    link = source_link(type(rows[0]))
    using = link.alias_beside(rows[0]._state.db)
    return isolate_unreadable(rows, load_sources, models.QuerySet(link.source, using=using))


def hand_out(row: Any) -> Any:
    """Return the source of a claimed companion, with ``source.claim`` the companion's where that name is free."""
    source = getattr(row, LINK)
    source.__dict__[COMPANION] = row
    if not hasattr(type(source), "claim"):
        source.__dict__["claim"] = row.claim
    return source


def lacks_source(row: models.Model) -> bool:
    """Say whether ``load_sources`` has found no source for the companion *row*."""
    return not source_link(type(row)).field.is_cached(row)


# Rows whose source is gone: found by one subquery, or by comparing keys where two databases are involved


def only_orphans(queryset: Found) -> Found:
    """Narrow *queryset* to rows without a source."""
    return queryset.filter(reduce(or_, _without_source(queryset), Q(pk__in=[])))


def remove_orphans(queryset: "models.QuerySet[models.Model]") -> int:
    """Delete rows without a source, chunk by chunk, but for those that are processing or locked."""
    found = _without_source(queryset)
    return sum(in_chunks(queryset, RemoveOrphans(orphaned)) for orphaned in found)


class RemoveOrphans(BulkVerb):
    """Deletes rows that match *orphaned* and are not processing."""

    def __init__(self, orphaned: Q) -> None:
        self.orphaned = orphaned

    def condition(self, target: ClaimTarget) -> Q:
        return self.orphaned & ~is_running(target.columns)

    def write(self, target: ClaimTarget, rows: list[LockedRow]) -> int:
        locked = target.rows.filter(self.condition(target), pk__in=[row.key for row in rows])
        _, by_label = locked.delete()
        return by_label.get(target.columns.owner._meta.label, 0)


def _without_source(queryset: "models.QuerySet[models.Model]") -> Iterator[Q]:
    """Yield conditions that match, together, the rows of *queryset* whose source is gone."""
    link, alias = source_link(queryset.model), queryset.db
    beside = link.alias_beside(alias)
    names = [field.attname for field in link.theirs]
    if beside == alias:
        key = {name: OuterRef(own.attname) for name, own in zip(names, link.own, strict=True)}
        sources: models.QuerySet[Any] = models.QuerySet(link.source, using=alias)
        yield Q(~Exists(sources.filter(**key)))
        return
    rows = queryset.order_by("pk").values_list("pk", *(field.attname for field in link.own))
    found = list(rows[:COMPARED])
    while found:
        there = set(link.with_keys({tuple(key) for _, *key in found}, beside).values_list(*names))
        if gone := [pk for pk, *key in found if tuple(key) not in there]:
            yield Q(pk__in=gone)
        found = list(rows.filter(pk__gt=found[-1][0])[:COMPARED])
