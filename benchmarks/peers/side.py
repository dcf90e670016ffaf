"""What runs in the environment of the peers: set a peer up, fill its queue, be one of its workers.

    python -m benchmarks.peers.side pgqueuer fill 10000

``prepare`` makes the tables, ``fill N`` puts N jobs in, ``work BATCH`` is one worker until it gets a signal to stop.
Peers that bring a command for their workers are started by that command instead, see ``benchmarks.peers.__main__``.
"""

import asyncio
import os
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.peers.settings")

#: Jobs put in by one statement.
PIECE = 1000


def prepare_django() -> None:
    from django.core.management import call_command

    call_command("migrate", verbosity=0)


# pgqueuer


def pgqueuer(action: str, number: int) -> None:
    import uvloop

    uvloop.run({"prepare": _install, "fill": _fill_pgqueuer, "work": _run_pgqueuer}[action](number))


async def _connected() -> Any:
    import asyncpg
    from pgqueuer.db import AsyncpgDriver

    return AsyncpgDriver(await asyncpg.connect(os.environ["DATABASE_URL"]))


async def _install(number: int) -> None:
    from pgqueuer.queries import Queries

    await Queries(await _connected()).install()


async def _fill_pgqueuer(number: int) -> None:
    from pgqueuer.queries import Queries

    queries = Queries(await _connected())
    for first in range(0, number, PIECE):
        count = min(PIECE, number - first)
        await queries.enqueue(["nothing"] * count, [None] * count, [0] * count)


async def _run_pgqueuer(batch: int) -> None:
    from datetime import timedelta

    from pgqueuer import PgQueuer

    app = PgQueuer(await _connected())

    @app.entrypoint("nothing")
    async def nothing(job: Any) -> None:
        """Do nothing."""

    await app.run(dequeue_timeout=timedelta(seconds=1), batch_size=batch)


# procrastinate


def procrastinate(action: str, number: int) -> None:
    asyncio.run(_procrastinate(action, number))


async def _procrastinate(action: str, number: int) -> None:
    from procrastinate import App, PsycopgConnector

    app = App(connector=PsycopgConnector(conninfo=os.environ["DATABASE_URL"]))

    @app.task(name="nothing")
    async def nothing() -> None:
        """Do nothing."""

    async with app.open_async():
        if action == "prepare":
            await app.schema_manager.apply_schema_async()
        elif action == "fill":
            for first in range(0, number, PIECE):
                await nothing.batch_defer_async(*[{}] * min(PIECE, number - first))
        else:
            await app.run_worker_async(concurrency=number)


# Those that are Django apps


def fill_ox(number: int) -> None:
    from django_ox.bulk import enqueue_many

    from benchmarks.peers.jobs import nothing_of_ox

    enqueue_many(nothing_of_ox, [((), {})] * number)


def fill_tasks_db(number: int) -> None:
    from django.db import transaction

    from benchmarks.peers.jobs import nothing_of_tasks_db

    with transaction.atomic():
        for _ in range(number):
            nothing_of_tasks_db.enqueue()


def fill_q2(number: int) -> None:
    from django.db import transaction
    from django_q.tasks import async_task

    with transaction.atomic():
        for _ in range(number):
            async_task("benchmarks.peers.jobs.nothing")


def fill_outbox(number: int) -> None:
    from django.db import transaction

    from benchmarks.peers.jobs import nothing_of_outbox

    with transaction.atomic():
        for _ in range(number):
            nothing_of_outbox.enqueue(0)


def django_peer(fill: Callable[[int], None]) -> Callable[[str, int], None]:
    def act(action: str, number: int) -> None:
        import django

        django.setup()
        if action == "prepare":
            prepare_django()
        else:
            fill(number)

    return act


PEERS: dict[str, Callable[[str, int], None]] = {
    "pgqueuer": pgqueuer,
    "procrastinate": procrastinate,
    "django-ox": django_peer(fill_ox),
    "django-tasks-db": django_peer(fill_tasks_db),
    "django-q2": django_peer(fill_q2),
    "django-reliable-outbox": django_peer(fill_outbox),
}

if __name__ == "__main__":
    PEERS[sys.argv[1]](sys.argv[2], int((*sys.argv, "0")[3]))
