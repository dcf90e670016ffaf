"""What a table may be surrounded by on PostgreSQL: an audit package's row triggers, partitions, a schema of its own."""

from typing import Any

import pghistory

from django_taskclaim.models import TaskMixin
from tests.testapp.models import Payload


class ByRange(TaskMixin, Payload):
    """Partitioned so that the first few rows already lie in three partitions."""

    class Meta:
        managed = False


PARTITIONS = ["FROM (MINVALUE) TO (3)", "FROM (3) TO (7)", "FROM (7) TO (MAXVALUE)"]


class Elsewhere(TaskMixin, Payload):
    """In another schema than those of the search path."""

    class Meta:
        managed = False
        db_table = '"taskclaim elsewhere"."task"'


@pghistory.track(pghistory.InsertEvent(), pghistory.UpdateEvent(), pghistory.DeleteEvent())
class Audited(TaskMixin, Payload):
    """django-pghistory notes every change of a row by a trigger."""


SURROUNDED: list[Any] = [ByRange, Elsewhere, Audited]
