"""Ranges of a source that grows: planned at once, due when nobody can commit a row among their keys any more.

A transaction takes its key early and commits late: who has come to 3 may have passed a 2 that nobody could see yet.
Where the database can name the open transactions, each range waits for those that were open when its keys had been
read. Elsewhere it waits for as long as the model says that a row is committed after its key was given.
"""

import json
import uuid
from datetime import timedelta
from typing import Any

from django.db.models.fields import AutoFieldMixin

from django_taskclaim.conf import positive_duration
from django_taskclaim.db.sql import PREPARED
from django_taskclaim.fields import NEVER_WAITED, OPEN_ENDED
from django_taskclaim.querysets.conditions import is_open
from django_taskclaim.querysets.transactions import in_transaction
from django_taskclaim.ranges.target import RangeTarget


def _commits_within(model: Any) -> timedelta | None:
    named = model.commits_within
    name = f"{model._meta.label}.commits_within"
    return None if named is None else positive_duration(named, name)


def refuse_unknown_commits(target: RangeTarget) -> None:
    """Raise TypeError where nothing says when a range of a growing source has all its rows.

    ValueError where ``commits_within`` is no duration.
    """
    model: Any = target.model
    if not model.growing:
        return
    label, source, fields = model._meta.label, target.keys.source._meta.label, target.keys.fields
    if target.claims.columns.not_before is None:
        reason = "without RetryMixin its ranges cannot wait for late commits."
    elif any(getattr(field, "default", None) is uuid.uuid4 for field in fields):
        reason = f"the keys of {source} are random: it has no end."
    elif _commits_within(model) is not None or (
        target.claims.dialect.names_open_transactions
        # A key that the database gives is younger than the transaction that inserts its row.
        and (len(fields) == 1 and isinstance(fields[0], AutoFieldMixin))
    ):
        return
    else:
        reason = (
            f"the database does not say how late smaller keys of {source} may be committed: say with commits_within how"
            " long after its key was given a row is committed at the latest."
        )
    raise TypeError(f"{label} is growing, and {reason}")


def waiting(target: RangeTarget) -> dict[str, Any]:
    """Return the columns of new ranges that have to wait for late commits.

    To be called after their keys were read: a transaction that begins later is given larger ones.
    """
    model: Any = target.model
    field, dialect = target.claims.columns.not_before, target.claims.dialect
    if field is None or not model.growing:
        return {}
    wait = _commits_within(model)
    if wait is not None:
        return {field.attname: dialect.current_time() + wait}
    still_open = dialect.open_transactions()
    if not still_open:
        return {}
    names = json.dumps(sorted(still_open | {PREPARED}))
    return {field.attname: OPEN_ENDED, "open_transactions": names}


def make_due(target: RangeTarget) -> int:
    """Make those ranges due whose transactions have ended, and return how many."""
    columns, dialect = target.claims.columns, target.claims.dialect
    if columns.not_before is None or not dialect.names_open_transactions:
        return 0
    open_ended = target.ranges.filter(is_open(columns), **{columns.not_before.name: OPEN_ENDED})
    marks = list(open_ended.order_by("pk").values_list("pk", "open_transactions"))
    # After the marks were read: what is not open now has ended since they were made.
    still_open = dialect.open_transactions() if marks else frozenset()
    over = [pk for pk, names in marks if names and still_open.isdisjoint(json.loads(names))]
    due: Any = {columns.not_before.name: NEVER_WAITED, "open_transactions": None}
    return sum(
        in_transaction(target.claims, open_ended.filter(pk__in=part).update, **due)
        for part in dialect.chunks(over, target.claims.table)
    )
