"""Where a model keeps its claim columns, and a companion the key of its source: what every statement goes through."""

from collections.abc import Callable, Iterable, Mapping
from functools import cache, cached_property
from typing import Any, NamedTuple, TypeVar

from django.db import models, router

from django_taskclaim.fields import AnyField, ClaimColumn, PriorityField, RangeColumn

F = TypeVar("F", bound=Callable[..., Any])


def memoized(function: F) -> F:
    """Keep each answer of *function*, as ``functools.cache`` does; type checkers see its own signature."""
    return cache(function)  # type: ignore[return-value]  # a wrapper of the same signature


#: The roles that no claim can do without, and those of the other mixins.
NEEDED_ROLES = ("status", "claimed_by", "claimed_at", "expires_at", "iteration")
OTHER_ROLES = ("completed_at", "attempts", "not_before", "last_error", "error_class", "priority")

#: The columns by their roles, under the names that the mixins give them.
PLAIN_NAMES: Mapping[str, str] = {role: role for role in (*NEEDED_ROLES, *OTHER_ROLES)}

#: The same for tables whose own ``status`` or ``priority`` is taken.
PREFIXED_NAMES: Mapping[str, str] = {
    role: role if role.startswith("claimed_") else f"claim_{role}" for role in PLAIN_NAMES
}


def unlinked(field: Any) -> Any:
    """Return the field that a key column takes its values from: that of the parent where the key links to it."""
    return unlinked(field.target_field) if field.is_relation else field


# Plain classes, because every process that loads a claimable model makes them, and a dataclass takes a hundred times as
# long to make.
class KeyColumns:
    """The table on which rows of a model are locked, and the columns of its key.

    ``owner`` is the concrete model of that table: the model itself, the one behind a proxy, or a parent.
    """

    def __init__(self, owner: type[models.Model]) -> None:
        self.owner = owner
        #: The key's columns on the owner's table; more than one for a composite key.
        self.key: list[AnyField] = list(owner._meta.pk_fields)

    @property
    def ranking(self) -> list[tuple[AnyField, bool]]:
        """The order of rows where the caller asks for none: each column, and whether it descends."""
        return [(field, False) for field in self.key]

    @property
    def order(self) -> list[str]:
        """The same in the words of ``order_by()``.

        By attname: the name of a key that links to a parent would order by that one's ``Meta.ordering``.
        """
        return ["-" * descending + field.attname for field, descending in self.ranking]

    def owned_by(self, model: type[models.Model]) -> bool:
        """Say whether the model's own table is the owner's."""
        return model._meta.concrete_model is self.owner

    def key_path(self, model: type[models.Model]) -> str:
        """Return how a query over *model* reaches the owner's key: ``pk``, or the link to the parent."""
        if self.owned_by(model):
            return "pk"
        link = model._meta.get_ancestor_link(self.owner)
        assert link is not None, f"{model} inherits from {self.owner}, so it has a link to it"
        parent: type[models.Model] = link.remote_field.model
        # The key of a parent that has two parents itself may be that of the other one.
        beyond = self.key_path(parent)
        return link.attname if beyond in ("pk", parent._meta.pk.attname) else beyond

    def key_of(self, row: models.Model) -> Any:
        """Return the key of the row on the owner's table."""
        return getattr(row, self.key_path(type(row)))


class ClaimColumns(KeyColumns):
    """The claim columns of one model, and the table that holds them.

    ``owner`` is the concrete model whose table has them: the model itself, the one behind a proxy, or a parent.
    Columns that the model's mixins do not bring are None.
    """

    status: AnyField
    claimed_by: AnyField
    claimed_at: AnyField
    expires_at: AnyField
    iteration: AnyField
    completed_at: AnyField | None
    attempts: AnyField | None
    not_before: AnyField | None
    last_error: AnyField | None
    error_class: AnyField | None
    priority: AnyField | None

    def __init__(self, owner: type[models.Model], columns: Mapping[str, object]) -> None:
        """*columns* by their roles, all of them."""
        super().__init__(owner)
        for role in PLAIN_NAMES:
            setattr(self, role, columns[role])
        # Those that make the rows ranges of keys go by their own names.
        for field in range_columns(owner):
            setattr(self, field.name, field)

    @cached_property
    def guarded(self) -> list[AnyField]:
        """The columns that the verbs alone write."""
        candidates = (getattr(self, role) for role in PLAIN_NAMES)
        ours: list[AnyField] = [field for field in candidates if isinstance(field, ClaimColumn)]
        return [*ours, *range_columns(self.owner)]

    @cached_property
    def guarded_names(self) -> frozenset[str]:
        """Names and attnames of the guarded columns."""
        return frozenset(name for field in self.guarded for name in (field.name, field.attname))

    @property
    def ranking(self) -> list[tuple[AnyField, bool]]:
        """The order of claims: higher priorities first, then who has waited longest, then by key."""
        first = [(self.priority, True)] if self.priority is not None else []
        then = [(self.not_before, False)] if self.not_before is not None else []
        return [*first, *then, *super().ranking]


def has_claim_columns(model: object) -> bool:
    """Say whether *model* is a concrete model that carries the claim columns."""
    meta = getattr(model, "_meta", None)
    return hasattr(model, "claim_fields") and meta is not None and not meta.abstract


def range_columns(model: type[models.Model]) -> list[AnyField]:
    """Return the columns that make the rows of *model* ranges of keys; none for any other model."""
    return [field for field in model._meta.local_concrete_fields if isinstance(field, RangeColumn)]


@memoized
def has_ranges(model: type[models.Model]) -> bool:
    """Say whether the rows of *model* are ranges of another model's keys."""
    concrete = model._meta.concrete_model
    return concrete is not None and bool(range_columns(concrete))


def is_claimable(model: Any) -> bool:
    """Say whether rows of *model* can be claimed: it has all the columns, and no field of the user's replaces one."""
    try:
        return claim_columns(model) is not None
    except TypeError:
        return False


def _columns_among(fields: Iterable[AnyField]) -> dict[str, AnyField]:
    return {one.name: one for one in fields if isinstance(one, (ClaimColumn, PriorityField))}


@memoized
def claim_columns(model: type[models.Model]) -> ClaimColumns:
    """Return where *model* keeps its claim columns; TypeError for a model without them."""
    if not has_claim_columns(model):
        text = "has no claim columns; add django_taskclaim.models.TaskMixin to it."
        raise TypeError(f"{getattr(model, '__name__', repr(model))} {text}")
    spelled = getattr(model, "claim_fields", None)
    if not isinstance(spelled, Mapping) or spelled.keys() - PLAIN_NAMES.keys():
        raise TypeError(
            f"{model._meta.label}.claim_fields must map roles to names of fields; the roles are"
            f" {', '.join(PLAIN_NAMES)}."
        )
    names: Mapping[str, str] = {**PLAIN_NAMES, **spelled}
    present = _columns_among(model._meta.concrete_fields)
    needed = {
        name
        for role, name in names.items()
        # The usual names of columns that a smaller mixin leaves out are no mistake.
        if role in NEEDED_ROLES or name not in (PLAIN_NAMES[role], PREFIXED_NAMES[role])
    }
    # Django lets any attribute of a class replace an abstract parent's field, without a word.
    for base in model.__mro__:
        meta = getattr(base, "_meta", None)
        if meta is not None and meta.abstract:
            needed.update(_columns_among(meta.local_fields))
    if lacking := sorted(needed - present.keys()):
        raise TypeError(
            f"{model._meta.label} has no claim column named {', '.join(lacking)}. If something of its own has that"
            " name, rename it or inherit from PrefixedTaskMixin; else add django_taskclaim.models.TaskMixin."
        )
    owners = sorted({field.model.__name__ for field in present.values()})
    if len(owners) > 1:
        raise TypeError(
            f"{model._meta.label} has claim columns on the tables of {' and '.join(owners)}, and one statement must"
            " write them all. Let one of them inherit from all the mixins."
        )
    columns: dict[str, Any] = {role: present.get(names[role]) for role in PLAIN_NAMES}
    return ClaimColumns(columns["status"].model, columns)


# Companions: the link from a row to one row of a table that may not be altered


#: The field of a companion that leads to its source.
LINK = "source"

#: Where a source that was handed to a handler keeps the companion whose claim it runs under.
COMPANION = "_taskclaim_companion"

#: A source's key as the companion has it: a tuple also where it is one column.
SourceKeyValues = tuple[Any, ...]


class SourceLink(NamedTuple):
    """The link of one companion model. Key columns are in the same order on both sides."""

    companion: type[models.Model]
    source: type[models.Model]
    field: Any
    #: The companion's columns that hold the key.
    own: tuple[AnyField, ...]
    #: The source's columns that they are copies of.
    theirs: tuple[AnyField, ...]

    def key_of(self, row: models.Model) -> SourceKeyValues:
        """Return the key that the companion *row* has of its source."""
        return tuple(getattr(row, field.attname) for field in self.own)

    def alias_beside(self, alias: str) -> str:
        """Return the database that the router writes the sources to, of companions on the database *alias*."""
        hint = self.companion()
        hint._state.db = alias
        return router.db_for_write(self.source, instance=hint)

    def load(self, rows: Iterable[models.Model], alias: str) -> list[models.Model]:
        """Load the sources of *rows* from the database *alias* in one query, and return the rows without one."""
        by_key = {self.key_of(row): row for row in rows}
        # Rows of the kind that `row.source` gives (django-polymorphic's are of several classes), but all of them: a
        # source that a manager hides is not gone.
        kind = type(self.source._base_manager.get_queryset())
        named = "pk" if len(self.theirs) > 1 else self.theirs[0].attname
        keys = [key if len(key) > 1 else key[0] for key in by_key]
        unmatched = False
        for source in kind(self.source, using=alias).filter(**{f"{named}__in": keys}):
            key = tuple(getattr(source, field.attname) for field in self.theirs)
            if key not in by_key:
                # A collation may take keys that are spelled differently for one: then each row asks for its own.
                if len(keys) > 1:
                    unmatched = True
                    continue
                key = next(iter(by_key))
            row = by_key.pop(key)
            # ``row.source`` asks no database then, nor does the way back.
            self.field.set_cached_value(row, source)
            if not self.field.remote_field.multiple:
                self.field.remote_field.set_cached_value(source, row)
        left = list(by_key.values())
        return [gone for row in left for gone in self.load([row], alias)] if unmatched else left


def is_companion(model: object) -> bool:
    """Say whether *model* is a ``SourceMixin`` model."""
    return bool(getattr(model, "taskclaim_companion", False))


@memoized
def source_link(model: type[models.Model]) -> SourceLink:
    """Return the link of the companion *model*; TypeError in one sentence where it has none that can work."""
    field: Any = next((one for one in model._meta.get_fields() if one.name == LINK), None)
    if not isinstance(field, models.ForeignObject):
        raise TypeError(
            f"{model._meta.label} has no field {LINK!r} that leads to another model; write {LINK} ="
            " models.OneToOneField(…), or SourceKey(…)."
        )
    own, theirs = zip(*field.related_fields, strict=True)
    return SourceLink(model, field.related_model, field, own, theirs)


def source_key_text(row: models.Model) -> str:
    """Return the key of the companion *row*'s source as people read it; empty for any other row.

    Asks no database: empty as well where the row was loaded without that key.
    """
    if not is_companion(type(row)):
        return ""
    return key_text(row.__dict__.get(field.attname) for field in source_link(type(row)).own)


def key_text(values: Iterable[object]) -> str:
    """Return the columns of a key as people read it, ``4711`` or ``acme, 3``; empty where one is missing."""
    parts = list(values)
    return "" if None in parts else ", ".join(str(part) for part in parts)


def companion_of(row: models.Model) -> Any:
    """Return the companion whose claim a handler's source *row* runs under; None for any other row."""
    return row.__dict__.get(COMPANION)


def as_claimed(row: Any) -> Any:
    """Return the row that carries the claim: the companion of a source that was handed out, else *row* itself."""
    return companion_of(row) or row


# What goes with a row

#: How a reference says that its row goes with the row that it refers to; the second one is of Django 6.1.
CASCADES = models.CASCADE, getattr(models, "DB_CASCADE", models.CASCADE)


def deleted_with(model: type[models.Model], found: set[Any]) -> set[Any]:
    """Add to *found* the models whose rows refer to rows of *model* and are deleted with them, and return it.

    Links of many to many are rows, too.
    """
    for relation in model._meta.get_fields(include_hidden=True):
        other: Any = relation.related_model
        # A GenericRelation has no on_delete, and Django deletes its rows all the same.
        is_generic = hasattr(relation, "bulk_related_objects")
        goes = is_generic or getattr(relation, "on_delete", None) in CASCADES
        if goes and other not in found:
            found.add(other)
            deleted_with(other, found)
    return found
