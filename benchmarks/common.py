"""What the benchmarks share: a database of their own, processes, tables of a given size, figures."""

import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.settings")

HOME = Path(__file__).parent.parent
STATISTICS = {"postgresql": "VACUUM ANALYZE", "mysql": "ANALYZE TABLE", "sqlite": "ANALYZE"}

Process = subprocess.Popen[bytes]


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def percentile(numbers: Sequence[float], part: float) -> float:
    """Return the number below which that part of *numbers* lies."""
    if part == 0.5:
        return statistics.median(numbers)
    return sorted(numbers)[min(len(numbers) - 1, int(len(numbers) * part))]


def spread(numbers: Sequence[float]) -> str:
    """Return two cells of a table: the median, and the least and the most."""
    return f"{statistics.median(numbers):,.0f} | {min(numbers):,.0f} to {max(numbers):,.0f}"


@contextlib.contextmanager
def own_database() -> Iterator[str]:
    """Set Django up on a new database, yield its URL for other processes, and drop it at the end.

    ``DATABASE_URL`` chooses the server as it does for the tests. Without it, the database is a SQLite file.
    """
    import django

    django.setup()
    from django.db import connection, connections

    from tests import servers

    name = connection.settings_dict["TEST"]["NAME"]
    for alias in connections:
        own = name.replace("test_", f"benchmark_{os.getpid()}_{alias}_", 1)
        connections[alias].settings_dict["TEST"]["NAME"] = own
    usual = connection.settings_dict["NAME"]
    connection.creation.create_test_db(verbosity=0, autoclobber=True, serialize=False)
    try:
        yield servers.url_of(connection.settings_dict)
    finally:
        connections.close_all()
        connection.creation.destroy_test_db(usual, verbosity=0)


# Tables


def execute(sql: str, params: Sequence[Any] = ()) -> None:
    """Run one statement and read its answer to the end."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(sql, params or None)
        if cursor.description:
            cursor.fetchall()


def empty(model: Any) -> None:
    from django.db import connection

    how = "DELETE FROM" if connection.vendor == "sqlite" else "TRUNCATE"
    execute(f"{how} {model._meta.db_table}")


def multiply(model: Any, rows: int, **values: Any) -> None:
    """Add so many rows with these values: one by Django, and copies of it by the database."""
    from django.db import connection

    first = model.objects.create(**values).pk
    table = model._meta.db_table
    fields = [field for field in model._meta.concrete_fields if not field.primary_key]
    names = ", ".join(connection.ops.quote_name(field.column) for field in fields)
    made = 1
    while made < rows:
        more = min(made, rows - made)
        execute(
            f"INSERT INTO {table} ({names}) SELECT {names} FROM {table} WHERE id >= %s LIMIT {more}",
            [first],
        )
        made += more


def settle(model: Any) -> None:
    """Collect the table's statistics, and write out what was filled in before anything is timed."""
    from django.db import connection

    execute(f"{STATISTICS[connection.vendor]} {model._meta.db_table}")
    if connection.vendor == "postgresql":
        execute("CHECKPOINT")


# Processes


@contextlib.contextmanager
def started(url: str, commands: Sequence[Sequence[str]]) -> Iterator[list[Process]]:
    """Run Python with the words of each command on the database *url* while the block runs."""
    environment: dict[str, Any] = os.environ | {"DATABASE_URL": url, "PYTHONPATH": str(HOME)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", *command],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        for command in commands
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(60)


def wait_until_up(processes: Sequence[Process], workers: int) -> None:
    """Wait until each loop by hand says that it is ready, or until so many worker processes have reported."""
    from django_taskclaim.models import WorkerProcess

    for process in [] if workers else processes:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
    end = time.monotonic() + 60
    while WorkerProcess.objects.count() < workers:
        assert time.monotonic() < end, "the workers did not come up"
        time.sleep(0.1)
    time.sleep(1.0)


def cpu_seconds(processes: Sequence[Process]) -> float:
    """Return the processor time of the processes and their children so far, without children that have ended."""
    parents = {process.pid for process in processes}
    used = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(folder.name) in parents or int(fields[1]) in parents:
                used += int(fields[11]) + int(fields[12])
    return used / os.sysconf("SC_CLK_TCK")
