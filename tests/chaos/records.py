"""What the runner writes down for the oracle, by the database's clock."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from django.db import connection
from django.db.models import F, Max

from django_taskclaim.dialects import DatabaseLater, DatabaseNow
from tests.chaos.app.models import Act, History, Orphan
from tests.chaos.sql import execute, now


@contextmanager
def act(kind: str, worker: str = "") -> Iterator[None]:
    """Write down that something is done to the workers for as long as the block lasts."""
    noted = Act.objects.create(kind=kind, worker=worker, began_at=DatabaseNow())
    yield
    # Asked for by itself: as part of the UPDATE it would lock the end of the history on MySQL.
    last = History.objects.aggregate(last=Max("seq"))["last"] or 0
    Act.objects.filter(pk=noted.pk).update(ended_at=DatabaseNow(), ended_after=last)


def harm(worker: str = "", seconds: float = 40) -> None:
    """Write down that a worker, or everybody, may lose claims for so many seconds from now."""
    until = DatabaseLater(timedelta(seconds=seconds))
    Act.objects.create(kind="harm", worker=worker, began_at=DatabaseNow(), ended_at=until)


def orphans(kind: str, worker: str, bound: float) -> None:
    """Write down the claims of a worker that has just been killed or frozen; they must end within *bound* seconds."""
    execute(
        connection,
        "INSERT INTO chaos_orphan (kind, work_id, holder, iteration, left_at, bound)"
        f" SELECT %s, id, claimed_by, iteration, {now(connection)}, %s FROM chaos_work"
        " WHERE status = 'processing' AND claimed_by LIKE %s",
        [kind, bound, f"{worker}%"],
    )


def leave(seconds: float) -> None:
    """Give the claims of the lately dead more time: the database itself was away."""
    lately = DatabaseLater(timedelta(seconds=-60))
    Orphan.objects.filter(left_at__gt=lately).update(bound=F("bound") + seconds)
