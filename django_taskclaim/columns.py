"""Where a model keeps its claim columns: the one mapping that every statement goes through."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from django.db import models

from django_taskclaim.caching import memoized
from django_taskclaim.fields import AnyField, ClaimColumn, PriorityField, RangeColumn

#: The roles that no claim can do without, and those of the other mixins.
NEEDED_ROLES = ("status", "claimed_by", "claimed_at", "expires_at", "iteration")
OTHER_ROLES = ("completed_at", "attempts", "not_before", "last_error", "error_class", "priority")

#: The columns by their roles, under the names that the mixins give them.
PLAIN_NAMES: Mapping[str, str] = {role: role for role in (*NEEDED_ROLES, *OTHER_ROLES)}

#: The same for tables whose own ``status`` or ``priority`` is taken.
PREFIXED_NAMES: Mapping[str, str] = {
    role: role if role.startswith("claimed_") else f"claim_{role}" for role in PLAIN_NAMES
}


# Plain classes, because every process that loads a claimable model makes them, and a dataclass takes a hundred times as
# long to make.
class KeyColumns:
    """The table on which rows of a model are locked, and the columns of its key.

    ``owner`` is the concrete model of that table: the model itself, the one behind a proxy, or a parent.
    """

    def __init__(self, owner: type[models.Model], key: Iterable[AnyField] = ()) -> None:
        """*key* is what tells rows apart if it is not the primary key."""
        self.owner = owner
        #: The key's columns on the owner's table; more than one for a composite key.
        self.key: list[AnyField] = list(key or owner._meta.pk_fields)

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
        return link.attname

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


def key_columns(model: type[models.Model]) -> KeyColumns:
    """Return on which table rows of *model* are locked: of an inherited one its topmost, which all its heirs share."""
    owner: type[models.Model] = model._meta.concrete_model or model
    while above := [parent for parent, link in owner._meta.parents.items() if link is not None]:
        owner = above[0]
    return KeyColumns(owner)


@memoized
def claim_columns(model: type[models.Model]) -> ClaimColumns:
    """Return where *model* keeps its claim columns; TypeError for a model without them."""
    if not has_claim_columns(model):
        raise TypeError(
            f"{model.__name__} has no claim columns; add django_taskclaim.models.TaskMixin to it."
        )
    spelled: Any = model.claim_fields  # type: ignore[attr-defined]  # of our mixins
    if (
        not isinstance(spelled, Mapping)
        or not PLAIN_NAMES.keys() >= spelled.keys()
        or not all(isinstance(name, str) for name in spelled.values())
    ):
        raise TypeError(
            f"{model._meta.label}.claim_fields must map roles to names of fields; the roles are"
            f" {', '.join(PLAIN_NAMES)}."
        )
    names: Mapping[str, str] = {**PLAIN_NAMES, **spelled}
    present = {
        f.name: f
        for f in model._meta.concrete_fields
        if isinstance(f, (ClaimColumn, PriorityField))
    }
    lacking = [
        name
        for role, name in names.items()
        # The usual names of columns that a smaller mixin leaves out are no mistake.
        if name not in present
        and (role in NEEDED_ROLES or name not in (PLAIN_NAMES[role], PREFIXED_NAMES[role]))
    ]
    if lacking:
        raise TypeError(
            f"{model._meta.label} has no claim column named {', '.join(lacking)}. If something of its own has that"
            " name, rename it or inherit from PrefixedTaskMixin; else add django_taskclaim.models.TaskMixin."
        )
    columns: dict[str, Any] = {role: present.get(names[role]) for role in PLAIN_NAMES}
    return ClaimColumns(columns["status"].model, columns)
