"""The abstract models that bring the claim columns, and what every model gets that inherits from one."""

from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, ClassVar, Self

from django.db import models
from django.db.models.query_utils import DeferredAttribute
from django.db.models.signals import class_prepared
from django.utils.translation import gettext_lazy as _

from django_taskclaim import fields
from django_taskclaim.awaitables import async_twin
from django_taskclaim.claim import Claim, claim_of, clock, remember, standing_claim
from django_taskclaim.columns import (
    PLAIN_NAMES,
    PREFIXED_NAMES,
    as_claimed,
    claim_columns,
    has_claim_columns,
    is_claimable,
)
from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.indexes import ClaimIndex
from django_taskclaim.querysets import ClaimManager, ClaimQuerySet
from django_taskclaim.querysets.fence import FencedModel, fence_delete
from django_taskclaim.querysets.writes import Given
from django_taskclaim.states import Status, Token

# row.claim


class ClaimHandle:
    """The claim of one row. Every verb raises ClaimLost, and writes nothing, once the claim stands no more."""

    __slots__ = ("_row",)

    def __init__(self, row: models.Model) -> None:
        self._row = row

    @property
    def token(self) -> Token:
        """Names this claim, with the row's key, for ever: ``(holder, iteration)``.

        Raises ClaimLost for a row that carries no claim.
        """
        return self._standing().token

    @property
    def lost(self) -> bool:
        """Whether this process already knows that the claim is gone; cheap, asks no database."""
        claim = claim_of(self._row)
        if claim is None or claim.ended or claim.lost:
            return True
        return claim.local_deadline is not None and claim.local_deadline <= clock()

    def check(self) -> bool:
        """Ask the database whether the claim stands: True, or ClaimLost."""
        claim = self._standing()
        if not Given(self._row).held[0].standing().rows:
            claim.lost = True
            raise ClaimLost([self._row])
        return True

    def complete(self, *, update_fields: Collection[str] = ()) -> None:
        """Finish the row well, writing the named columns of your model in the same fenced statement."""
        self._verbs().complete([self._row], update_fields=update_fields)

    def fail(self, error: BaseException | str, *, retry: bool = True) -> None:
        """Finish the row badly; it is tried again unless its tries are used up or *retry* is False."""
        self._verbs().fail([self._row], error, retry=retry)

    def release(self, *, delay: float | timedelta | None = None) -> None:
        """Give the row back unfinished and uncounted."""
        self._verbs().release([self._row], delay=delay)

    def hand_over(self, to: str, *, lease: float | timedelta | None = None) -> None:
        """Let *to* hold the row from now on; this claim is ended."""
        self._verbs().hand_over([self._row], to=to, lease=lease)

    def renew(self, lease: float | timedelta | None = None) -> bool:
        """Extend the lease, never shorten it. False where another transaction has the row locked just now."""
        return bool(self._verbs().renew([self._row], lease))

    acheck = async_twin(check)
    acomplete = async_twin(complete)
    afail = async_twin(fail)
    arelease = async_twin(release)
    ahand_over = async_twin(hand_over)
    arenew = async_twin(renew)

    def _verbs(self) -> ClaimQuerySet[Any]:
        return ClaimQuerySet(type(self._row))

    def _standing(self) -> Claim:
        claim = standing_claim(self._row)
        if claim is None:
            raise ClaimLost(
                [self._row], reason="it carries no claim, or a verb of its own has ended it"
            )
        return claim


# What a claimable model gets as its class is made. Abstract bases can give none of this: Django inherits only the first
# base's Meta, a manager of a concrete parent hides the mixin's, and an inherited method would stop a user's field of
# the same name from being loaded late.

SHORT_FORMS = ("complete", "fail", "release", "renew")


def prepare(sender: type[models.Model], **kwargs: object) -> None:
    """Prepare *sender* if it is claimable; a historical model of a migration is not."""
    if not has_claim_columns(sender) or sender._meta.swapped:
        return
    manager = sender._meta.default_manager
    if type(manager) is models.Manager and getattr(manager, "auto_created", False):
        # Django made it for a concrete parent, and the child inherits it.
        sender.add_to_class("objects", ClaimManager())
    fence_delete(sender)
    for name in SHORT_FORMS:
        if not hasattr(sender, name):
            setattr(sender, name, _short_form(name))
    # Where a user's field has replaced a claim column, the system checks report it.
    if not sender._meta.proxy and is_claimable(sender) and claim_columns(sender).owner is sender:
        _give_index(sender)
        for field in claim_columns(sender).guarded:
            setattr(sender, field.attname, WatchedAttribute(field))


def _short_form(name: str) -> object:
    """Return the method that a model gets under *name*: the verb of ``row.claim``."""

    @wraps(getattr(ClaimHandle, name))
    def verb(self: Any, *args: Any, **kwargs: Any) -> object:
        return getattr(self.claim, name)(*args, **kwargs)

    vars(verb)["alters_data"] = True
    return verb


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


class_prepared.connect(prepare, dispatch_uid="django_taskclaim.prepare")


# The mixins

_status = partial(fields.StatusField, default=Status.OPEN.value, db_default=Status.OPEN.value)
_holder = partial(fields.HolderField, null=True, default=None)
_moment = partial(fields.MomentField, null=True, default=None)
_counter = partial(fields.CounterField, default=0, db_default=0)
_not_before = partial(
    fields.MomentField, default=fields.NEVER_WAITED, db_default=fields.NEVER_WAITED
)
_error_text = partial(fields.ErrorTextField, default="", db_default="", blank=True)
_error_class = partial(fields.ShortTextField, default="", db_default="", blank=True)
_priority = partial(fields.PriorityField, default=0, db_default=0, editable=False)


class ClaimBase(FencedModel):
    """What all the mixins share: the manager and ``row.claim``."""

    #: Which field plays which role; a mixin of your own may spell the roles otherwise.
    claim_fields: ClassVar[Mapping[str, str]] = PLAIN_NAMES

    objects: ClassVar[ClaimManager[Self]] = ClaimManager()

    class Meta:
        abstract = True

    @property
    def claim(self) -> ClaimHandle:
        """The claim that this instance carries, with the verbs on it.

        Of a source that a companion's handler received, it is the companion's.
        """
        return ClaimHandle(as_claimed(self))

    if TYPE_CHECKING:
        # Added to each model where it leaves the name free, see ``prepare``.
        def complete(self, *, update_fields: Collection[str] = ()) -> None: ...
        def fail(self, error: BaseException | str, *, retry: bool = True) -> None: ...
        def release(self, *, delay: float | timedelta | None = None) -> None: ...
        def renew(self, lease: float | timedelta | None = None) -> bool: ...


class ClaimMixin(ClaimBase):
    """The least that a claim needs. Without ``RetryMixin`` the iteration stands in for the count of tries."""

    status = _status(_("status"))
    claimed_by = _holder(_("claimed by"))
    claimed_at = _moment(_("claimed at"))
    expires_at = _moment(_("expires at"))
    iteration = _counter(_("iteration"))

    class Meta:
        abstract = True


class CompletedAtMixin(models.Model):
    """When a row was finished well."""

    completed_at = _moment(_("completed at"))

    class Meta:
        abstract = True


class RetryMixin(models.Model):
    """How often a row failed, with what, and how long it waits."""

    attempts = _counter(_("attempts"))
    not_before = _not_before(_("not before"))
    last_error = _error_text(_("last error"))
    error_class = _error_class(_("error class"))

    class Meta:
        abstract = True


class PriorityMixin(models.Model):
    """The user's own order: higher comes first. This column is the user's to write.

    A model that declares it again, ``priority = PriorityField(default=0, db_default=0)``, has it in its forms.
    """

    priority = _priority(_("priority"))

    class Meta:
        abstract = True


class TaskMixin(ClaimMixin, CompletedAtMixin, RetryMixin, PriorityMixin):
    """All that a worker makes good use of."""

    class Meta:
        abstract = True


class PrefixedClaimMixin(ClaimBase):
    """``ClaimMixin`` under names that leave ``status`` to the table."""

    claim_fields = PREFIXED_NAMES

    claim_status = _status(_("claim status"))
    claimed_by = _holder(_("claimed by"))
    claimed_at = _moment(_("claimed at"))
    claim_expires_at = _moment(_("claim expires at"))
    claim_iteration = _counter(_("claim iteration"))

    class Meta:
        abstract = True


class PrefixedTaskMixin(PrefixedClaimMixin):
    """``TaskMixin`` under names that leave ``status``, ``priority`` and the rest to the table."""

    claim_completed_at = _moment(_("claim completed at"))
    claim_attempts = _counter(_("claim attempts"))
    claim_not_before = _not_before(_("claim not before"))
    claim_last_error = _error_text(_("claim last error"))
    claim_error_class = _error_class(_("claim error class"))
    claim_priority = _priority(_("claim priority"))

    class Meta:
        abstract = True
