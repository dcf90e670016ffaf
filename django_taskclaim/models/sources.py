"""``SourceMixin``: claims for the rows of a table that may not be altered, kept in a table beside it."""

# Django's own fields take no type arguments when they run.
# mypy: disable-error-code="type-arg"

from inspect import signature
from typing import Any, ClassVar, Self

from django.db import models
from django.db.models.fields import AutoFieldMixin
from django.db.models.fields.related import lazy_related_operation

from django_taskclaim.columns import unlinked
from django_taskclaim.companions import CompanionManager
from django_taskclaim.fields import AnyField
from django_taskclaim.models.mixins import ClaimBase


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
