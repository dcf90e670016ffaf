"""The mixins to inherit from, and the tables of this app.

``ClaimMixin`` is the least; ``TaskMixin`` adds what a worker makes good use of. The ``Prefixed…`` forms are for tables
whose own ``status`` or ``priority`` is taken. ``SourceMixin`` makes a model the companion of a table that may not be
altered.
"""

from django_taskclaim.companions import SourceKey as SourceKey
from django_taskclaim.companions import SourceMixin as SourceMixin
from django_taskclaim.mixins import ClaimBase as ClaimBase
from django_taskclaim.mixins import ClaimMixin as ClaimMixin
from django_taskclaim.mixins import CompletedAtMixin as CompletedAtMixin
from django_taskclaim.mixins import PrefixedClaimMixin as PrefixedClaimMixin
from django_taskclaim.mixins import PrefixedTaskMixin as PrefixedTaskMixin
from django_taskclaim.mixins import PriorityMixin as PriorityMixin
from django_taskclaim.mixins import RetryMixin as RetryMixin
from django_taskclaim.mixins import TaskMixin as TaskMixin
from django_taskclaim.ranges import RangeMixin as RangeMixin
from django_taskclaim.tables import Control as Control
from django_taskclaim.tables import NamedLease as NamedLease
from django_taskclaim.tables import RateLevel as RateLevel
from django_taskclaim.tables import Switch as Switch
from django_taskclaim.tables import WorkerProcess as WorkerProcess
