"""Every table of the package has an age or a bound, and none grows with the rows that are worked on."""

import os
import re
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.apps import apps
from django.db import models

from django_taskclaim import conf
from django_taskclaim.control import poller
from django_taskclaim.control.models import ClaimEvent, OperatorAct, ThroughputMinute
from django_taskclaim.db import DatabaseLater
from django_taskclaim.models import NamedLease, RateLevel, Switch, WorkerProcess
from django_taskclaim.tables import SILENCE_KEPT
from django_taskclaim.worker import service
from tests import documents
from tests.commands import no_savepoint, run
from tests.querysets.support import claimable_rows
from tests.testapp.models import QuickJob

pytestmark = pytest.mark.django_db(databases="__all__")

#: At most one row for each model.
BOUNDED = {RateLevel, Switch}

#: The setting that limits the age (a day without one), the columns that tell it, the one that differs, and what else a
#: row needs.
AGES: dict[Any, tuple[str, str, str, dict[str, Any]]] = {
    WorkerProcess: ("", "started_at seen_at", "name", {}),
    NamedLease: ("", "claimed_at", "name", {}),
    OperatorAct: ("RETENTION", "at", "by", {"act": "reset"}),
    ThroughputMinute: ("RETENTION", "at", "process", {"model": "testapp.photo"}),
    ClaimEvent: ("RETENTION", "at", "key", {"event": "claimed"}),
}


def our_tables() -> set[type[models.Model]]:
    """Return every concrete model of the package."""
    ours = [one for one in apps.get_app_configs() if one.name.startswith("django_taskclaim")]
    return {model for app in ours for model in app.get_models() if not model._meta.proxy}


@pytest.mark.once
def test_the_page_states_the_age_or_bound_of_every_table() -> None:
    assert our_tables() == {*AGES, *BOUNDED}
    page = (documents.DOCS / "operating.md").read_text(encoding="utf-8")
    told = re.findall(r"^\| `(taskclaim_\w+)` \|.*\| (?:`(\w+)`)? ?\|$", page, re.MULTILINE)
    wanted = {model._meta.db_table: name for model, (name, *_) in AGES.items()}
    assert dict(told) == {**wanted, **{model._meta.db_table: "" for model in BOUNDED}}


def prune_as_a_worker() -> None:
    for prune in (service.prune, poller.prune):
        service.in_pieces(prune, "default")


@pytest.mark.parametrize("delete", [partial(run, "release_expired"), prune_as_a_worker])
def test_old_rows_of_every_table_are_deleted_in_chunks(
    delete: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.TASKCLAIM = {"CHUNK_SIZE": 2}
    monkeypatch.setattr(service, "PRUNE_FOR", 60.0)
    young = DatabaseLater(timedelta(minutes=-5))
    for table, (name, moments, differs, rest) in AGES.items():
        age = conf.duration(name) if name else SILENCE_KEPT
        old = DatabaseLater(-age - timedelta(hours=1))
        for number, at in enumerate([old] * 5 + [young] * 2):
            table.objects.create(
                **dict.fromkeys(moments.split(), at), **{differs: str(number)}, **rest
            )
    delete()
    # What was done is kept in one row more, as a sum.
    left = dict.fromkeys(AGES, 2) | {ThroughputMinute: 3}
    assert {table: table.objects.count() for table in AGES} == left


@pytest.mark.once
@pytest.mark.promise(13)
@pytest.mark.timeout(7200)
@no_savepoint
def test_rows_that_are_worked_on_leave_nothing_behind() -> None:
    """A process writes one row of throughput for a minute. ``TASKCLAIM_TEST_ROWS`` asks for more rows."""
    rows = int(os.environ.get("TASKCLAIM_TEST_ROWS", "500"))
    claimable_rows(QuickJob, rows)
    run("claimworker", "testapp.QuickJob", "--drain", "--in-process")
    assert QuickJob.objects.progress().complete == rows
    sizes = {model.__name__: model._base_manager.count() for model in our_tables()}
    assert sizes.pop("ThroughputMinute") >= 1
    assert sum(sizes.values()) <= 10, sizes
