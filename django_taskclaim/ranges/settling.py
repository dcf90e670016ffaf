"""Ranges of a source that grows: planned at once, due when no smaller key can be committed any more.

A transaction takes its key early and commits late, so whoever has come to 3 may have passed a 2 that nobody could see
yet. Where the database can name the transactions that are open, each range waits for those that were when its keys
had been read; elsewhere for as long as the model says that a transaction may last.
"""

import json
import uuid
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from django.db import models
from django.db.models.fields import AutoFieldMixin

from django_taskclaim.conf import positive_duration
from django_taskclaim.db.sql import PREPARED, SQL
from django_taskclaim.fields import NEVER_WAITED, UNSETTLED
from django_taskclaim.querysets.transactions import transactionally
from django_taskclaim.ranges.place import Place
from django_taskclaim.states import Status

#: Ranges that are looked at together.
BATCH = 500


def settle_after(model: type[models.Model]) -> timedelta | None:
    """Return how long the ranges of a growing source wait by what *model* says; ValueError for no duration."""
    named: Any = getattr(model, "settle_after", None)
    return None if named is None else positive_duration(named, f"{model._meta.label}.settle_after")


def refuse_unsettled(place: Place) -> None:
    """Raise TypeError where nothing tells when the keys of a growing source are settled, ValueError for no duration."""
    if not place.grows:
        return
    label, source = place.model._meta.label, place.key.source._meta.label
    if place.claim_target.columns.not_before is None:
        raise TypeError(
            f"{label} is growing, and without RetryMixin its ranges cannot wait for late commits."
        )
    fields = place.key.fields
    if any(getattr(field, "default", None) is uuid.uuid4 for field in fields):
        raise TypeError(f"{label} is growing, and the keys of {source} are random: it has no end.")
    if settle_after(place.model) is not None:
        return
    if not place.claim_target.dialect.names_open_transactions:
        raise TypeError(
            f"{label} is growing, and this database does not tell which transactions may still commit smaller keys:"
            " say with settle_after how long one may last at most."
        )
    if len(fields) > 1 or not isinstance(fields[0], AutoFieldMixin):
        raise TypeError(
            f"{label} is growing, and the database does not give {source} its keys, so they may be older than the"
            " transactions that insert them: say with settle_after by how much at most."
        )


def waiting(place: Place) -> dict[str, Any]:
    """Return the columns of ranges that wait until the keys of the source in them are settled.

    To be called after those keys were read: a transaction that began later has been given larger ones.
    """
    field, dialect = place.claim_target.columns.not_before, place.claim_target.dialect
    if field is None or not place.grows:
        return {}
    age = settle_after(place.model)
    if age is not None:
        return {field.attname: dialect.current_time() + age}
    around = dialect.open_transactions()
    if not around:
        return {}
    return {field.attname: UNSETTLED, "settling": json.dumps(sorted(around | {PREPARED}))}


def settle(place: Place) -> int:
    """Make those ranges due whose keys are settled by now, and return how many."""
    columns, dialect = place.claim_target.columns, place.claim_target.dialect
    if columns.not_before is None or not dialect.names_open_transactions:
        return 0
    rows = place.rows.filter(
        **{columns.status.name: Status.OPEN, columns.not_before.name: UNSETTLED}
    )
    marks = list(rows.order_by("pk").values_list("pk", "settling"))
    if not marks:
        return 0
    # After the marks were read: who is not open now has ended since they were made.
    around = dialect.open_transactions()
    over = [pk for pk, mark in marks if mark and around.isdisjoint(json.loads(mark))]
    return sum(
        transactionally(place.claim_target, partial(_make_due, place, over[start : start + BATCH]))
        for start in range(0, len(over), BATCH)
    )


def _make_due(place: Place, keys: Sequence[Any]) -> int:
    claim_target, field = place.claim_target, place.claim_target.columns.not_before
    assert field is not None
    unsettled = SQL(f"{claim_target.table.column(place.field('settling'))} IS NOT NULL")
    condition = SQL.join(" AND ", [claim_target.table.in_state(Status.OPEN), unsettled])
    due = [
        claim_target.table.assign(field, claim_target.table.bound(field, NEVER_WAITED)),
        place.assign("settling", SQL("NULL")),
    ]
    return sum(
        claim_target.dialect.update_where(claim_target.table, chunk, condition, due)
        for chunk in claim_target.dialect.chunks(keys, claim_target.table)
    )
