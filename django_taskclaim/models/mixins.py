"""The abstract models that bring the claim columns."""

from collections.abc import Collection, Mapping
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Self

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_taskclaim.columns import PLAIN_NAMES, PREFIXED_NAMES, as_claimed
from django_taskclaim.fields import (
    NEVER_WAITED,
    CounterField,
    ErrorClassField,
    ErrorTextField,
    HolderField,
    MomentField,
    PriorityField,
    StatusField,
)
from django_taskclaim.models import preparing  # noqa: F401 - prepares every model made from here on
from django_taskclaim.models.preparing import ClaimHandle
from django_taskclaim.querysets import ClaimManager
from django_taskclaim.querysets.fence import FencedModel
from django_taskclaim.states import Status

_status = partial(
    StatusField, default=Status.OPEN.value, db_default=Status.OPEN.value, editable=False
)
_holder = partial(HolderField, null=True, default=None, editable=False)
_moment = partial(MomentField, null=True, default=None, editable=False)
_counter = partial(CounterField, default=0, db_default=0, editable=False)
_not_before = partial(MomentField, default=NEVER_WAITED, db_default=NEVER_WAITED, editable=False)
_error_text = partial(ErrorTextField, default="", db_default="", blank=True, editable=False)
_error_class = partial(ErrorClassField, default="", db_default="", blank=True, editable=False)
_priority = partial(PriorityField, default=0, db_default=0, editable=False)


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
        # Added to each model where it leaves the name free, see `preparing`.
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
