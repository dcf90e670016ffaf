"""Every table of ours has an age or a bound: what is too old goes, and none grows with the rows that are worked on."""

import os
import re
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection, models

from django_taskclaim import conf
from django_taskclaim.control import keeping
from django_taskclaim.control.models import (
    ClaimEvent,
    LiveSettings,
    OperatorAct,
    ThroughputMinute,
    WorkerOrder,
)
from django_taskclaim.dialects import DatabaseLater
from django_taskclaim.models import FleetLimit, NamedLease, Switch, Throttle, WorkerProcess
from tests.behaviour.support import claimable_rows
from tests.test_commands import run
from tests.test_commands import shell as in_a_process
from tests.testapp.models import QuickJob

pytestmark = pytest.mark.django_db(databases="__all__")

#: One row a model at most.
BOUNDED = {FleetLimit, Switch, LiveSettings}


def a_worker(at: Any) -> None:
    facts = {"host": "h", "pid": 1, "version": "1", "started_at": at, "seen_at": at}
    WorkerProcess.objects.create(name=f"w{WorkerProcess.objects.count()}", **facts)


def a_throttle(at: Any) -> None:
    facts = {"process": "w", "label": "testapp.photo", "source": "lag", "reason": "slow"}
    Throttle.objects.create(**facts, since_at=at, until=at)


def a_lease(at: Any) -> None:
    NamedLease.objects.create(name=f"n{NamedLease.objects.count()}", claimed_at=at)


def an_act(at: Any) -> None:
    OperatorAct.objects.create(at=at, model="testapp.photo", act="reset", by="ada")


def a_minute(at: Any) -> None:
    # Without a process: taken together with the others already.
    run_of_it = str(ThroughputMinute.objects.count())
    ThroughputMinute.objects.create(at=at, model="testapp.photo", run=run_of_it)


def an_event(at: Any) -> None:
    ClaimEvent.objects.create(at=at, model="testapp.photo", key="1", event="claimed")


def an_order(at: Any) -> None:
    WorkerOrder.objects.create(at=at, worker="w", order="stop", by="ada")


#: How a row of that age is made, and the setting that says when it goes.
AGES: dict[Any, tuple[Callable[[Any], None], str]] = {
    WorkerProcess: (a_worker, "WORKER_RETENTION"),
    Throttle: (a_throttle, "WORKER_RETENTION"),
    NamedLease: (a_lease, "WORKER_RETENTION"),
    OperatorAct: (an_act, "ACT_RETENTION"),
    ThroughputMinute: (a_minute, "THROUGHPUT_RETENTION"),
    ClaimEvent: (an_event, "HISTORY_RETENTION"),
    WorkerOrder: (an_order, "WORKER_RETENTION"),
}


def our_tables() -> set[type[models.Model]]:
    """Return every concrete model of the package, whichever app of it has it."""
    ours = [one for one in apps.get_app_configs() if one.name.startswith("django_taskclaim")]
    found = [model for one in ours for model in one.get_models()]
    return {model for model in found if not model._meta.proxy}


def test_every_table_of_ours_has_an_age_or_a_bound() -> None:
    assert our_tables() == {*AGES, *BOUNDED}


def test_the_page_states_each() -> None:
    page = Path(__file__).resolve().parent.parent / "docs" / "operating.md"
    told = re.findall(
        r"^\| `(taskclaim_\w+)` \|.*\| (?:`(\w+)`)? ?\|$", page.read_text("utf-8"), re.MULTILINE
    )
    wanted = {model._meta.db_table: name for model, (_make, name) in AGES.items()}
    assert dict(told) == {**wanted, **{model._meta.db_table: "" for model in BOUNDED}}


@pytest.mark.parametrize("table", AGES, ids=lambda model: model.__name__)
def test_what_is_too_old_goes_where_no_worker_lives(table: Any, settings: Any) -> None:
    settings.TASKCLAIM = {"CHUNK_SIZE": 2}
    make, name = AGES[table]
    age = conf.duration(name)
    for _ in range(5):
        make(DatabaseLater(-age - timedelta(hours=1)))
    for _ in range(2):
        make(DatabaseLater(timedelta(minutes=-5)))
    assert run("release_expired") == "No claim has expired.\n"
    assert table.objects.count() == 2


def test_that_it_could_not_be_forgotten_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def prune(using: str) -> bool:
        raise OperationalError("the disk is full")

    monkeypatch.setattr(keeping, "prune", prune)
    with pytest.raises(CommandError) as caught:
        call_command("release_expired", "testapp.Photo")
    assert str(caught.value) == "What is old on 'default' could not be forgotten: the disk is full"


def work_through(rows: int, env: dict[str, str], *words: str) -> dict[str, int]:
    """Let real workers complete so many rows, and return how many rows each table of ours has then."""
    claimable_rows(QuickJob, rows)
    done = in_a_process(env, "claimworker", "testapp.QuickJob", "--drain", *words)
    assert done.returncode == 0, done.stderr
    assert QuickJob.objects.progress().complete == rows
    return {model.__name__: model._base_manager.count() for model in our_tables()}


def assert_small(sizes: dict[str, int], minutes: float, processes: int) -> None:
    """A minute and process has one row of throughput; all else is a few rows, whatever was done."""
    throughput = sizes.pop("ThroughputMinute")
    assert 1 <= throughput <= (minutes + 2) * processes
    assert sum(sizes.values()) <= 10, sizes


def test_a_few_thousand_rows_leave_a_few_rows_behind(process_env: dict[str, str]) -> None:
    assert_small(work_through(3_000, process_env, "--in-process"), 2, 1)


#: How many bytes a table takes with its indexes; SQLite does not tell of single tables.
BYTES = {
    "postgresql": "SELECT pg_total_relation_size(%s::regclass)",
    "mysql": "SELECT data_length + index_length FROM information_schema.tables"
    " WHERE table_schema = DATABASE() AND table_name = %s",
}


def bytes_of_ours() -> dict[str, int]:
    """Return what each table of ours takes on disk, dead rows and all; empty where the database does not tell."""
    question = BYTES.get(connection.vendor)
    found = {}
    with connection.cursor() as cursor:
        for model in our_tables() if question else ():
            cursor.execute(question, [model._meta.db_table])
            found[model.__name__] = int(cursor.fetchone()[0])
    return found


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.django_db(transaction=True, databases="__all__")
def test_a_million_rows_leave_as_few_behind(process_env: dict[str, str]) -> None:
    """``TASKCLAIM_TEST_ROWS`` asks for fewer, or more."""
    rows, began = int(os.environ.get("TASKCLAIM_TEST_ROWS", "1_000_000")), time.monotonic()
    sizes = work_through(rows, process_env, "--processes", "2", "--batch-size", "500")
    minutes, taken = (time.monotonic() - began) / 60, bytes_of_ours()
    print(f"{rows:,} rows in {minutes:.1f} min leave {sizes} rows, {taken} bytes")
    assert_small(sizes, minutes, 2)
    # Most of it is what empty tables and indexes take anyway.
    assert max(taken.values(), default=0) < 1_000_000, taken
