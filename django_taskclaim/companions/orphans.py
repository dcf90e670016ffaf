"""Companions whose source is gone: found by one subquery, or by comparing keys where two databases are involved."""

from collections.abc import Iterator
from functools import reduce
from operator import or_
from typing import Any, TypeVar

from django.db import models
from django.db.models import Exists, OuterRef, Q

from django_taskclaim.links import source_link
from django_taskclaim.querysets.conditions import is_running
from django_taskclaim.querysets.operating import BulkVerb, LockedRow, in_chunks
from django_taskclaim.querysets.scope import ClaimTarget

Found = TypeVar("Found", bound="models.QuerySet[Any]")

#: How many keys are compared together where no subquery can.
COMPARED = 400


def only_orphans(queryset: Found) -> Found:
    """Narrow *queryset* to rows without a source."""
    return queryset.filter(reduce(or_, _without_source(queryset), Q(pk__in=[])))


def remove_orphans(queryset: "models.QuerySet[Any]") -> int:
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


def _without_source(queryset: "models.QuerySet[Any]") -> Iterator[Q]:
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
