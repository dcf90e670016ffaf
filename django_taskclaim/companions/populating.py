"""Making the rows of a companion: one INSERT … SELECT where source and companion share a database, else copied keys."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.db import IntegrityError, models
from django.db.models import Exists, F, OuterRef, Q, Value
from django.db.models.fields import NOT_PROVIDED

from django_taskclaim.columns import OwnKey
from django_taskclaim.db.sql import SQL
from django_taskclaim.fields import AnyField
from django_taskclaim.guard import prepare_birth
from django_taskclaim.links import SourceKeyValues, SourceLink, source_link
from django_taskclaim.querysets.scope import ClaimTarget, Rows
from django_taskclaim.querysets.transactions import transactionally
from django_taskclaim.querysets.waking import call_workers
from django_taskclaim.states import Status

#: How many source rows a transaction is about where they are copied.
CHUNK = 2_000
#: How often an INSERT is sent that others have got in the way of.
TRIES = 3
#: The advisory lock of those who make the rows of a companion.
QUEUE = "#populate"


@dataclass(frozen=True, slots=True)
class Populated:
    """How far a populate has got: source rows looked at, and companions added for them."""

    seen: int
    added: int


class Population:
    """One call of ``populate``: a queryset of sources, and the state that their companions are born in."""

    def __init__(
        self, model: type[models.Model], alias: str, sources: Any, *, paused: bool
    ) -> None:
        self.link = source_link(model)
        self.target = ClaimTarget.of(model, alias)
        self.paused = paused
        self.sources = _checked(sources, self.link, alias)
        self.table = self.target.dialect.keyed_table(
            OwnKey(self.target.columns.owner, tuple(self.link.own))
        )

    @property
    def is_one_statement(self) -> bool:
        """Whether the database can make the rows by itself: it has both tables, and no value comes from Python."""
        return self.sources.db == self.target.alias and not any(
            _made_in_python(field) for field in self._others()
        )

    def run(self, chunk_size: int | None) -> Iterator[Populated]:
        """Add what is missing chunk by chunk, and yield after each commit; without a size all at once if it can."""
        if chunk_size is not None and (not isinstance(chunk_size, int) or chunk_size < 1):
            raise ValueError(f"chunk_size must be a whole number from 1, not {chunk_size!r}.")
        if self.sources.query.is_empty():
            return
        if not self.is_one_statement:
            for keys in self._keys(chunk_size or CHUNK):
                yield Populated(len(keys), self._patiently(partial(self._copy, keys)))
        elif chunk_size is None:
            yield Populated(0, self._patiently(partial(self._insert, self.sources)))
        else:
            for seen, sources, near in self._parts(chunk_size):
                yield Populated(seen, self._patiently(partial(self._insert, sources, near)))

    # One statement

    def _insert(self, sources: Rows, near: Q | None = None, *, again: bool) -> int:
        """Insert what is missing; only companions *near* the sources are looked at, but for a second try."""
        self._queue()
        constants = self._constants()
        # On an empty table a look for what is there already would only cost time.
        there = self.target.rows if near is None or again else self.target.rows.filter(near)
        missing = self._missing(sources, there) if there.exists() else sources
        names = [f"taskclaim_{number}" for number in range(len(self.link.own) + len(constants))]
        values = [*(F(field.attname) for field in self.link.theirs), *constants.values()]
        chosen = missing.annotate(**dict(zip(names, values, strict=True))).values_list(*names)
        text, params = chosen.query.get_compiler(connection=self.target.dialect.connection).as_sql()
        into = [*self.link.own, *constants]
        dialect = self.target.dialect
        inserted = dialect.insert_selected(
            self.table,
            into,
            SQL(text, tuple(params)),
            passing_over=again and dialect.passes_over_duplicates,
        )
        if inserted:
            call_workers(self.target.columns.owner, self.target.alias)
        return inserted

    def _missing(self, sources: Rows, there: Rows) -> Rows:
        linked = {
            own.attname: OuterRef(theirs.attname)
            for own, theirs in zip(self.link.own, self.link.theirs, strict=True)
        }
        return sources.filter(~Exists(there.filter(**linked)))

    def _constants(self) -> dict[AnyField, Value]:
        """Return what each new row has beside the key and what the database's own defaults give."""
        found = {
            field: Value(default, output_field=field)
            for field in self._others()
            if not _has_db_default(field) and (default := field.get_default()) is not None
        }
        if self.paused:
            found[self.target.columns.status] = Value(Status.PAUSED.value)
        return found

    def _others(self) -> list[AnyField]:
        fields = self.target.columns.owner._meta.concrete_fields
        return [f for f in fields if f not in self.link.own and not getattr(f, "generated", False)]

    # Copying

    def _keys(self, size: int) -> Iterator[list[SourceKeyValues]]:
        """Yield the keys of *size* sources at a time, in the order of their primary key."""
        walk = _Walk(self.sources)
        while True:
            wanted = (*walk.key, *(field.attname for field in self.link.theirs))
            found = list(walk.rows.values_list(*wanted)[:size])
            if found:
                yield [tuple(row[len(walk.key) :]) for row in found]
            if len(found) < size:
                return
            walk.go_on(found[-1][: len(walk.key)])

    def _parts(self, size: int) -> Iterator[tuple[int, Rows, Q]]:
        """Yield *size* sources at a time without reading them: how many, which, and where their companions can be."""
        walk = _Walk(self.sources)
        before: Sequence[Any] | None = None
        while last := next(iter(walk.rows.values_list(*walk.key)[size - 1 : size]), None):
            yield size, walk.up_to(last), self._near(before, last)
            walk.go_on(last)
            before = last
        yield walk.rows.count(), walk.rows.order_by(), self._near(before, None)

    def _near(self, before: Sequence[Any] | None, last: Sequence[Any] | None) -> Q:
        """Return where companions of the sources between two keys can be, lest each chunk look at all of them.

        A server whose statistics know nothing of the rows just added would read them all for each chunk.
        """
        if list(self.link.theirs) != list(self.sources.model._meta.pk_fields):
            return Q()
        name = self.link.own[0].attname
        above = Q() if before is None else Q(**{f"{name}__gte": before[0]})
        return above if last is None else above & Q(**{f"{name}__lte": last[0]})

    def _copy(self, keys: list[SourceKeyValues], *, again: bool) -> int:
        self._queue()
        there = self._there(keys)
        new = [self._born(key) for key in keys if self._plain(key) not in there]
        self.target.rows.bulk_create(new)
        return len(new)

    def _there(self, keys: Sequence[SourceKeyValues]) -> set[Any]:
        """Return those of the source *keys* that have a companion."""
        given = [self._plain(key) for key in keys]
        parts = self.target.dialect.chunks(given, self.table)
        return {key for part in parts for key in self.target.dialect.present(self.table, part)}

    @staticmethod
    def _plain(key: SourceKeyValues) -> Any:
        return key if len(key) > 1 else key[0]

    def _born(self, key: SourceKeyValues) -> models.Model:
        names = (field.attname for field in self.link.own)
        row = self.target.columns.owner(**dict(zip(names, key, strict=True)))
        if self.paused:
            setattr(row, self.target.columns.status.attname, Status.PAUSED.value)
        prepare_birth(row)
        return row

    # Beside others

    def _queue(self) -> None:
        """Wait for others that make rows of the same companion; one that began later finds what they have made."""
        self.target.dialect.advisory_lock(f"{self.target.columns.owner._meta.label_lower}:{QUEUE}")

    def _patiently(self, write: Callable[..., int]) -> int:
        """Let *write* have its transaction, again where a row that it inserts has come from elsewhere meanwhile."""
        dialect = self.target.dialect
        for left in reversed(range(TRIES)):
            again = left < TRIES - 1
            passed_over = again and self.is_one_statement and dialect.passes_over_duplicates
            try:
                return transactionally(self.target, partial(write, again=again))
            except IntegrityError:
                # Where a second try could pass over the row, it is something else.
                if not left or passed_over:
                    raise
        raise AssertionError("the last try returns or raises")


def _checked(sources: Any, link: SourceLink, alias: str) -> Rows:
    """Return a queryset of whole source rows, each once; TypeError or ValueError in a sentence for what is none."""
    label = link.companion._meta.label
    if isinstance(sources, models.Manager):
        sources = sources.all()
    if not isinstance(sources, models.QuerySet) or not issubclass(sources.model, link.source):
        raise TypeError(
            f"populate() of {label} takes a queryset of {link.source._meta.label}, not {sources!r:.200}."
        )
    query = sources.query
    if query.combinator or query.is_sliced or query.group_by is not None or query.distinct_fields:
        raise TypeError(
            f"populate() of {label} takes a filtered queryset: no slice, no union, no aggregate, no distinct()"
            " on fields."
        )
    beside = link.alias_beside(alias)
    if sources._db not in (None, beside):  # type: ignore[attr-defined]
        raise ValueError(
            f"The sources of {label} are on the database {beside!r}, and the queryset reads from {sources.db!r}."
        )
    # By name, for a router might send it to a replica that lags behind.
    sources = sources.using(beside)
    return _each_once(sources.order_by().select_related(None))


def _each_once(sources: Rows) -> Rows:
    """Return the same rows without the joins of their filters, which may show a row twice."""
    tables = [alias for alias, count in sources.query.alias_refcount.items() if count]
    own = [sources.model._meta.db_table]
    if (
        tables in ([], own)
        and not sources.query.distinct
        and not sources.query.extra_tables
        and not sources.query.annotations
    ):
        return sources
    unfiltered: Rows = models.QuerySet(sources.model, using=sources.db)
    return unfiltered.filter(pk__in=sources.values("pk"))


def _has_db_default(field: Any) -> bool:
    return getattr(field, "db_default", NOT_PROVIDED) is not NOT_PROVIDED


def _made_in_python(field: Any) -> bool:
    """Say whether each row gets a value of its own from Python, as ``default=uuid4`` or ``auto_now`` do."""
    if _has_db_default(field):
        return False
    stamped = getattr(field, "auto_now", False) or getattr(field, "auto_now_add", False)
    return bool(stamped or (field.has_default() and callable(field.default)))


class _Walk:
    """Goes through sources in the order of their primary key."""

    def __init__(self, sources: Rows) -> None:
        self.sources = sources
        self.key = [field.attname for field in sources.model._meta.pk_fields]
        self.rows = sources.order_by(*self.key)

    def up_to(self, last: Sequence[Any]) -> Rows:
        """Return the rows from here to *last*, unordered."""
        return self.rows.filter(self._bound("lte", "lte", last)).order_by()

    def go_on(self, last: Sequence[Any]) -> None:
        """Go on behind *last*."""
        self.rows = self.sources.order_by(*self.key).filter(self._bound("gt", "gte", last))

    def _bound(self, lookup: str, first: str, last: Sequence[Any]) -> Q:
        if len(self.key) == 1:
            return Q(**{f"pk__{lookup}": last[0]})
        # The first column alone lets MySQL use the index, which it does not for a comparison of rows.
        alone = {f"{self.key[0]}__{first}": last[0]}
        return Q(**alone) & Q(**{f"pk__{lookup}": tuple(last)})
