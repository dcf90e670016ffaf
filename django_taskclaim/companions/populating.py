"""Making the rows of a companion: by INSERT … SELECT where the database can, else by keys, chunk by chunk."""

from collections.abc import Callable
from functools import reduce
from operator import or_
from typing import Any

from django.db import IntegrityError, models
from django.db.models import Exists, F, OuterRef, Q, Value

from django_taskclaim.columns import SourceLink, source_link
from django_taskclaim.conf import NUMBER_OR_NONE
from django_taskclaim.db.notify import call_workers
from django_taskclaim.fields import AnyField
from django_taskclaim.querysets.scope import (
    ClaimTarget,
    Rows,
    is_of_one_table,
    refuse_unclaimable,
    run,
)
from django_taskclaim.ranges.keys import Keys

#: Source rows of one transaction where keys are copied.
CHUNK = 2_000

#: Called after each commit with how many sources were looked at so far, and how many companions added.
Progress = Callable[[int, int], object]


class Population:
    """One call of ``populate`` for a queryset of sources."""

    def __init__(self, model: type[models.Model], alias: str, sources: object) -> None:
        self.link = source_link(model)
        self.target = ClaimTarget.of(model, alias)
        self.owner = self.target.columns.owner
        self.sources = _checked(sources, self.link, alias)
        #: The columns of a companion beside its source's key.
        self.others: list[AnyField] = [
            field
            for field in self.owner._meta.concrete_fields
            if field not in self.link.own and not getattr(field, "generated", False)
        ]
        #: Whether the database can make the rows by itself: it has both tables, and no value comes from Python.
        self.is_one_statement = self.sources.db == alias and not any(
            map(_made_in_python, self.others)
        )

    def run(self, chunk_size: int | None, progress: Progress | None) -> int:
        """Add what is missing and return how many: in one statement if no size is given and the database can do it."""
        NUMBER_OR_NONE.check(chunk_size, "chunk_size")
        if self.sources.query.is_empty():
            return 0
        add = self._insert if self.is_one_statement else self._copy
        if chunk_size is None and self.is_one_statement:
            return self._add(add, self.sources)
        keys, by_key = Keys(self.sources.model, self.sources.db), self.sources.order_by("pk")
        seen = added = 0
        for part in keys.parts(by_key, chunk_size or CHUNK):
            sources = self.sources.filter(keys.between(part.after, part.until))
            added += self._add(add, sources)
            seen += part.rows
            if progress is not None:
                progress(seen, added)
        return added

    def _add(self, add: Callable[[Rows], int], sources: Rows) -> int:
        """Add the companions that *sources* lack; try again if others have added one of them meanwhile."""

        def once() -> int:
            # Calls of ``populate`` wait for each other, so each finds what the one before has made.
            self.target.dialect.advisory_lock(f"{self.owner._meta.label_lower}:#populate")
            added = add(sources)
            if added:
                call_workers(self.owner, self.target.alias)
            return added

        try:
            return run(self.target, once)
        except IntegrityError:
            return run(self.target, once)

    def _insert(self, sources: Rows) -> int:
        """Insert what is not there, by one INSERT … SELECT."""
        there, pairs = self.target.rows, list(zip(self.link.own, self.link.theirs, strict=True))
        # On an empty table this condition would only cost time.
        if there.exists():
            same = {own.attname: OuterRef(theirs.attname) for own, theirs in pairs}
            sources = sources.filter(~Exists(there.filter(**same)))
        # All columns but the key and those with a default in the database.
        constants = {
            field: Value(default, output_field=field)
            for field in self.others
            if not field.has_db_default() and (default := field.get_default()) is not None
        }
        keys = {own: F(theirs.attname) for own, theirs in pairs}
        return self.target.dialect.insert_selected(
            self.target.table, sources, {**keys, **constants}
        )

    def _copy(self, sources: Rows) -> int:
        """Read the keys of *sources* and insert those that are not there."""
        names, own = [f.attname for f in self.link.theirs], [f.attname for f in self.link.own]
        new = {key: dict(zip(own, key, strict=True)) for key in sources.values_list(*names)}
        for part in self.target.dialect.chunks(list(new), self.target.table, len(own)):
            is_there = reduce(or_, (Q(**new[key]) for key in part))
            for key in self.target.rows.filter(is_there).values_list(*own):
                new.pop(key, None)
        return len(self.target.rows.bulk_create([self.owner(**key) for key in new.values()]))


def _checked(sources: object, link: SourceLink, alias: str) -> Rows:
    """Return a queryset of whole source rows, each once; TypeError in a sentence for what is none."""
    label = link.companion._meta.label
    if isinstance(sources, models.Manager):
        sources = sources.all()
    if not isinstance(sources, models.QuerySet) or not issubclass(sources.model, link.source):
        raise TypeError(
            f"populate() of {label} takes a queryset of {link.source._meta.label}, not {sources!r:.200}."
        )
    refuse_unclaimable(sources)
    # The alias is named, because a router might send the query to a replica that lags behind.
    beside = link.alias_beside(alias)
    return _each_once(sources.using(beside).order_by().select_related(None))


def _each_once(sources: Rows) -> Rows:
    """Return the same rows without the joins of their filters, which may show a row twice."""
    if is_of_one_table(sources) and not sources.query.annotations:
        return sources
    unfiltered: Rows = models.QuerySet(sources.model, using=sources.db)
    return unfiltered.filter(pk__in=sources.values("pk"))


def _made_in_python(field: Any) -> bool:
    """Say whether each row gets a value of its own from Python, as ``default=uuid4`` or ``auto_now`` do."""
    if field.has_db_default():
        return False
    stamped = getattr(field, "auto_now", False) or getattr(field, "auto_now_add", False)
    return bool(stamped or (field.has_default() and callable(field.default)))
