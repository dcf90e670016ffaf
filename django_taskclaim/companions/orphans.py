"""Companions whose source is gone: found by one subquery, or by comparing keys where two databases are involved."""

from collections.abc import Iterator
from typing import Any, TypeVar

from django.db import models
from django.db.models import Exists, OuterRef, Q

from django_taskclaim.links import SourceLink, source_link
from django_taskclaim.querysets.operating import in_chunks
from django_taskclaim.querysets.scope import ClaimTarget
from django_taskclaim.states import Status

Q_ = TypeVar("Q_", bound="models.QuerySet[Any]")

#: How many keys are compared at a time where no subquery can.
COMPARED = 400


def only_orphans(queryset: Q_) -> Q_:
    """Narrow *queryset* to rows without a source."""
    link, alias = source_link(queryset.model), queryset.db
    if link.alias_beside(alias) == alias:
        return queryset.filter(_without_source(link, alias))
    return queryset.filter(pk__in=[pk for pks in _compared(queryset, link) for pk in pks])


def remove(queryset: "models.QuerySet[Any]") -> int:
    """Delete rows without a source, chunk by chunk, but for those that are processing or locked."""
    link, alias = source_link(queryset.model), queryset.db
    if link.alias_beside(alias) == alias:
        return _removed(queryset, _without_source(link, alias))
    return sum(_removed(queryset, Q(pk__in=pks)) for pks in _compared(queryset, link))


def _removed(queryset: "models.QuerySet[Any]", orphaned: Q) -> int:
    def condition(target: ClaimTarget) -> Q:
        return orphaned & ~Q(**{target.columns.status.name: Status.PROCESSING})

    def write(target: ClaimTarget, locked: list[list[Any]]) -> int:
        keys = [target.table.key_of(row) for row in locked]
        _, by_label = target.rows.filter(condition(target), pk__in=keys).delete()
        return by_label.get(target.columns.owner._meta.label, 0)

    return in_chunks(queryset, condition, write)


def _without_source(link: SourceLink, alias: str) -> Q:
    key = {
        theirs.attname: OuterRef(own.attname)
        for own, theirs in zip(link.own, link.theirs, strict=True)
    }
    sources: models.QuerySet[Any] = models.QuerySet(link.source, using=alias)
    return Q(~Exists(sources.filter(**key)))


def _compared(queryset: "models.QuerySet[Any]", link: SourceLink) -> Iterator[list[Any]]:
    """Yield the keys of companions whose sources their own database does not have, some at a time."""
    using = link.alias_beside(queryset.db)
    rows = queryset.order_by("pk").values_list("pk", *(field.attname for field in link.own))
    names = [field.attname for field in link.theirs]
    last: Any = None
    while found := list((rows if last is None else rows.filter(pk__gt=last))[:COMPARED]):
        keys = {tuple(row[1:]) for row in found}
        there = set(link.with_keys(keys, using).values_list(*names))
        if gone := [row[0] for row in found if tuple(row[1:]) not in there]:
            yield gone
        last = found[-1][0]
