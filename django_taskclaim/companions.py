"""Companions: claims for the rows of a table that may not be altered, kept in a table beside it.

Here are ``SourceMixin`` and its manager, what makes the rows, by INSERT … SELECT where the database can, else by keys,
and what loads the sources and hands them to handlers. How a companion finds its source is in ``columns``.
"""

# Django's own fields take no type arguments when they run.
# mypy: disable-error-code="type-arg"

from collections.abc import Callable, Sequence
from functools import reduce
from inspect import signature
from operator import or_
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from django.db import IntegrityError, models
from django.db.models import Exists, F, OuterRef, Q, Value
from django.db.models.fields import AutoFieldMixin
from django.db.models.fields.related import lazy_related_operation

from django_taskclaim.awaitables import async_twin
from django_taskclaim.columns import COMPANION, LINK, SourceLink, source_link, unlinked
from django_taskclaim.columns import companion_of as companion_of
from django_taskclaim.conf import NUMBER_OR_NONE
from django_taskclaim.db.notify import call_workers
from django_taskclaim.fields import AnyField
from django_taskclaim.mixins import ClaimBase
from django_taskclaim.querysets.isolating import Bad, find_unreadable
from django_taskclaim.querysets.manager import ClaimManager, ClaimQuerySet
from django_taskclaim.querysets.scope import (
    ClaimTarget,
    Rows,
    is_of_one_table,
    refuse_unclaimable,
    run,
)
from django_taskclaim.ranges.keys import Keys

M = TypeVar("M", bound=models.Model)


class CompanionQuerySet(ClaimQuerySet[M]):
    """The rows of a ``SourceMixin`` model; to inherit from, or to make a manager of."""

    def populate(
        self, sources: Rows | models.Manager[Any], *, chunk_size: int | None = None
    ) -> int:
        """Add a row for each source of the queryset *sources* that has none, and return how many were added.

        The new rows are open. Repeatable, also by several at once: no source ever gets two. One
        INSERT … SELECT where both tables are on one database. Otherwise, or with *chunk_size*, the sources are taken in
        chunks in the order of their key. Each chunk is committed, so a call that breaks off is simply repeated.

        Raises TypeError for what is no filtered queryset of the source model, and for rows that lie in several tables.
        """
        self._for_write = True
        return Population(self.model, self.db, sources).run(chunk_size)

    apopulate = async_twin(populate)


if TYPE_CHECKING:
    # A manager's methods and a queryset's are typed differently by django-stubs.
    class CompanionManager(CompanionQuerySet[M], ClaimManager[M]):  # type: ignore[misc,override]
        """The same in words that type checkers understand: a manager and a queryset in one."""

else:

    class CompanionManager(ClaimManager.from_queryset(CompanionQuerySet)):
        """The manager that ``SourceMixin`` brings; a custom one inherits from it or from ``from_queryset(…)``."""


# The models


class SourceMixin(ClaimBase):
    """Makes a claimable model the companion of another one, to be used with one of the other mixins.

    It needs one field, ``source``: a ``OneToOneField``, or a ``SourceKey`` where there can be none. The handler of
    a companion receives the source.
    """

    taskclaim_companion: ClassVar[bool] = True

    objects: ClassVar[CompanionManager[Self]] = CompanionManager()

    class Meta:
        abstract = True


class SourceKey(models.ForeignObject):
    """The link to a source with a composite key, or on another database: the companion copies the key's columns.

    They are called ``source_<column>``, without constraint or cascade, and unique together. ``row.source`` loads
    the source as over a foreign key, from the database that the router names; where both tables are on one database,
    filters may join over it.
    """

    # A primary key is unique, which Django's check does not see of a composite one.
    requires_unique_target = False

    def __init__(self, to: Any, **kwargs: Any) -> None:
        usual: dict[str, Any] = {"on_delete": models.DO_NOTHING, "from_fields": (), "to_fields": ()}
        super().__init__(to, **(usual | {"related_name": "+", "editable": False} | kwargs))

    def deconstruct(self) -> Any:
        """Migrations see Django's own class: the copied columns stand there by themselves."""
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.ForeignObject", args, kwargs

    def contribute_to_class(self, cls: Any, name: str, *args: Any, **kwargs: Any) -> None:
        super().contribute_to_class(cls, name, *args, **kwargs)
        if self.from_fields or cls._meta.abstract:
            return
        if isinstance(to := self.remote_field.model, str):
            lazy_related_operation(self._copy_key, cls, to)
        else:
            self._copy_key(cls, to)

    def _copy_key(self, cls: Any, source: Any) -> None:
        """Add the columns to *cls*, unique as a whole."""
        key = list(source._meta.pk_fields)
        names = [f"{self.name}_{field.attname}" for field in key]
        for name, field in zip(names, key, strict=True):
            cls.add_to_class(name, _copied(field, unique=len(key) == 1))
        if len(key) > 1:
            together = (*cls._meta.unique_together, tuple(names))
            # Without the second, makemigrations would not see it.
            cls._meta.unique_together = together
            cls._meta.original_attrs["unique_together"] = together
        self.from_fields, self.to_fields = names, [field.name for field in key]


#: Of a key column, what its copy has no use for: all that every field may have, but its length.
_LEFT_OUT = signature(models.Field).parameters.keys() - {"max_length"} | {
    "auto_now",
    "auto_now_add",
}


def _copied(field: Any, *, unique: bool) -> AnyField:
    """Return a field that holds values of the key column *field*."""
    field = unlinked(field)
    internal, (_, _, args, kwargs) = field.get_internal_type(), field.deconstruct()
    kwargs = {name: value for name, value in kwargs.items() if name not in _LEFT_OUT}
    kind: Any = type(field)
    if isinstance(field, AutoFieldMixin):
        # ``BigIntegerField`` holds the numbers that ``BigAutoField`` gives.
        kind = getattr(models, internal.replace("Auto", "Integer"))
    copied: AnyField = kind(*args, **(kwargs | {"editable": False, "unique": unique}))
    return copied


# Making their rows

#: Source rows of one transaction where keys are copied.
CHUNK = 2_000


class Population:
    """One call of ``populate`` for a queryset of sources."""

    def __init__(self, model: type[models.Model], alias: str, sources: object) -> None:
        self.link = source_link(model)
        self.target = ClaimTarget.of(model, alias)
        self.owner = self.target.columns.owner
        if self.owner._meta.parents or not self.target.is_owner:
            raise TypeError(
                f"A row of {model._meta.label} lies in several tables, and populate() fills one; save() each row."
            )
        # No companion can be linked to a source that has nothing in the linked column.
        keyed = {f"{field.attname}__isnull": False for field in self.link.theirs if field.null}
        self.sources = _checked(sources, self.link, alias).filter(**keyed)
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

    def run(self, chunk_size: int | None) -> int:
        """Add what is missing and return how many: in one statement if no size is given and the database can do it."""
        NUMBER_OR_NONE.check(chunk_size, "chunk_size")
        if self.sources.query.is_empty():
            return 0
        add = self._insert if self.is_one_statement else self._copy
        if chunk_size is None and self.is_one_statement:
            return self._add(add, self.sources)
        keys, by_key = Keys(self.sources.model, self.sources.db), self.sources.order_by("pk")
        return sum(
            self._add(add, self.sources.filter(keys.between(part.after, part.until)))
            for part in keys.parts(by_key, chunk_size or CHUNK)
        )

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
    sources = sources.using(link.alias_beside(alias)).order_by().select_related(None)
    if is_of_one_table(sources) and not sources.query.annotations:
        return sources
    # Without the joins of their filters, which may show a row twice.
    unfiltered: Rows = models.QuerySet(sources.model, using=sources.db)
    return unfiltered.filter(pk__in=sources.values("pk"))


def _made_in_python(field: Any) -> bool:
    """Say whether each row gets a value of its own from Python, as ``default=uuid4`` or ``auto_now`` do.

    The ``pre_save()`` of a field that is not Django's may make one, too.
    """
    if field.has_db_default():
        return False
    stamped = getattr(field, "auto_now", False) or getattr(field, "auto_now_add", False)
    stamped = stamped or not type(field).pre_save.__module__.startswith("django.db.")
    return bool(stamped or (field.has_default() and callable(field.default)))


# Their sources

#: The sources of so many rows are loaded by one query.
LOADED_AT_ONCE = 400


def load_sources(rows: Sequence[Any]) -> list[Bad[Any]]:
    """Load the sources of companions, one query for hundreds; return those that cannot be read, each with the error.

    Afterwards ``row.source`` of the others asks no database. All rows must be of one model and database.
    """
    if not rows:
        return []
    link = source_link(type(rows[0]))
    using = link.alias_beside(rows[0]._state.db)

    def load(part: Sequence[Any]) -> None:
        for start in range(0, len(part), LOADED_AT_ONCE):
            link.load(part[start : start + LOADED_AT_ONCE], using)

    return find_unreadable(rows, load, models.QuerySet(link.source, using=using))


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
