"""Whether the server has room for what all workers together may open."""

from collections.abc import Iterator

from django.db import Error, connections
from django.db.models import Sum

from django_taskclaim.dialects import DatabaseLater, dialect_for
from django_taskclaim.dialects.around import around
from django_taskclaim.doctor.findings import Finding
from django_taskclaim.models import WorkerProcess
from django_taskclaim.overview import ALIVE_WITHIN
from django_taskclaim.wording import counted

#: The part of the limit from which on workers leave too little to the site.
MUCH = 0.8


def connection_findings(alias: str) -> Iterator[Finding]:
    """Yield how the connections that living workers may open compare with the limit of the server *alias*.

    A database that does not answer, or knows no limit, says nothing here.
    """
    try:
        yield from _compared(alias)
    except Error:
        return


def _compared(alias: str) -> Iterator[Finding]:
    here = around(dialect_for(connections[alias]))
    if replicas := here.replicas():
        yield Finding.note(
            f"{counted(replicas, 'replica')} of this server {'follows' if replicas == 1 else 'follow'} each change:"
            " two for each row that is done. ReplicaLag in HEALTH_CHECKS slows workers down for them."
        )
    limit = here.connections()
    alive = WorkerProcess.objects.using(alias).filter(seen_at__gte=DatabaseLater(-ALIVE_WITHIN))
    processes, need = alive.count(), alive.aggregate(all=Sum("connections"))["all"] or 0
    if limit is None or not processes:
        return
    told = (
        f"{counted(processes, 'worker process', 'worker processes')} may open {counted(need, 'connection')}; the server"
        f" allows {limit.most:,}, of which {limit.open:,} are open now."
    )
    fewer = "Start fewer processes or threads, raise the limit, or put a pooler in between."
    if need > limit.most:
        yield Finding.problem(told, fewer)
    elif need > MUCH * limit.most:
        yield Finding.note(told, f"Little is left to others. {fewer}")
    else:
        yield Finding.fine(told)
