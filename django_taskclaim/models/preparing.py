"""What every claimable model gets as its class is made: the claim index, a manager with the verbs, short forms.

Abstract bases can give none of these: Django inherits only the first base's Meta, a manager of a concrete parent
hides the mixin's, and an inherited method would stop a user's field of the same name from being loaded late.
"""

from collections.abc import Iterable
from typing import Any

from django.db import models
from django.db.models.query_utils import DeferredAttribute
from django.db.models.signals import class_prepared

from django_taskclaim.columns import claim_columns, has_claim_columns, is_claimable
from django_taskclaim.guard import remember
from django_taskclaim.indexes import ClaimIndex
from django_taskclaim.models.handle import ClaimHandle
from django_taskclaim.querysets import ClaimManager
from django_taskclaim.querysets.fence import fence_delete

SHORT_FORMS = ("complete", "fail", "release", "renew")


def prepare(sender: type[models.Model], **kwargs: object) -> None:
    """Prepare *sender* if it is claimable; a historical model of a migration is not."""
    if not has_claim_columns(sender) or sender._meta.swapped:
        return
    _give_manager(sender)
    fence_delete(sender)
    for name in SHORT_FORMS:
        if not hasattr(sender, name):
            setattr(sender, name, _short_form(name))
    # Where a user's field has replaced a claim column, the system checks report it.
    if not sender._meta.proxy and is_claimable(sender) and claim_columns(sender).owner is sender:
        _give_index(sender)
        _prepare_columns(sender)


def _short_form(name: str) -> object:
    """Return the method that a model gets under *name*: the verb of ``row.claim``."""

    def verb(self: Any, *args: Any, **kwargs: Any) -> object:
        return getattr(self.claim, name)(*args, **kwargs)

    verb.__name__ = name
    verb.__doc__ = getattr(ClaimHandle, name).__doc__
    vars(verb)["alters_data"] = True
    return verb


def _give_manager(model: type[models.Model]) -> None:
    """Replace the plain manager that Django made for a concrete parent and that the child inherits."""
    manager = model._meta.default_manager
    if (
        manager is not None
        and type(manager) is models.Manager
        and getattr(manager, "auto_created", False)
    ):
        model.add_to_class("objects", ClaimManager())


def _give_index(model: type[models.Model]) -> None:
    if any(isinstance(index, ClaimIndex) for index in model._meta.indexes):
        return
    columns = claim_columns(model)
    order = ["-" * descending + field.name for field, descending in columns.ranking]
    index = ClaimIndex(fields=[columns.status.name, *order])
    index.set_name_with_model(model)
    # Without the second, makemigrations would not see it.
    model._meta.indexes = [*model._meta.indexes, index]
    model._meta.original_attrs["indexes"] = [*model._meta.original_attrs.get("indexes", []), index]


class WatchedAttribute(DeferredAttribute):
    """A claim column whose value may be loaded later than its row; loaded so, it was not assigned."""

    def fetch_many(self, instances: Iterable[models.Model]) -> None:
        """Load the column of a whole result at once, as Django's fetch mode ``FETCH_PEERS`` does since 6.1."""
        super().fetch_many(instances)
        for instance in instances:
            remember(instance, [self.field.attname])


def _prepare_columns(model: type[models.Model]) -> None:
    for field in claim_columns(model).guarded:
        setattr(model, field.attname, WatchedAttribute(field))


class_prepared.connect(prepare, dispatch_uid="django_taskclaim.prepare")
