"""An operator's verbs over rows: ``fail_rows``, ``take_back`` and ``run_at``."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.fields import QUARANTINED
from tests.commands import in_each_state
from tests.factories import make
from tests.querysets.support import facts, has, stored
from tests.testapp.models import Child, ClaimOnly, CompositeKey

pytestmark = pytest.mark.django_db

TABLES = pytest.mark.parametrize("model", [ClaimOnly, Child, CompositeKey])


@pytest.mark.promise(3)
@TABLES
def test_fail_rows_fails_running_and_complete_ones_only_when_named(model: Any) -> None:
    """A failed row keeps who and how often, and its holder has lost it."""
    rows = in_each_state(model)
    before = {state: facts(row) for state, row in rows.items()}
    text = "no <use>\x00 🎈"
    assert model.objects.fail_rows(text) == 2
    for state in ("processing", "complete", "failed"):
        assert facts(rows[state]) == before[state]
    assert model.objects.fail_rows(text, complete=True) == 1
    assert model.objects.fail_rows(text, running=True) == 1
    assert model.objects.fail_rows(text, running=True, complete=True) == 0
    for state in ("open", "paused", "processing", "complete"):
        now, then = facts(rows[state]), before[state]
        assert (now.status, now.expires_at) == ("failed", None)
        assert (now.claimed_by, now.iteration) == (then.claimed_by, then.iteration + 1)
        if has(model, "attempts"):
            assert (now.attempts, now.completed_at) == (then.attempts, None)
            assert (now.error_class, now.last_error) == ("FailedByOperator", "no <use>\\x00 🎈")
    row = rows["processing"]
    for verb in (row.claim.complete, row.claim.release, row.claim.renew, row.save):
        with pytest.raises(ClaimLost), transaction.atomic():
            verb()
    assert model.objects.reset() == 5
    assert model.objects.fail_rows(LookupError("gone")) == 5
    assert getattr(facts(row), "error_class", "LookupError") == "LookupError"


@pytest.mark.promise(3)
@TABLES
def test_running_rows_are_taken_back_uncounted_and_no_others(model: Any) -> None:
    rows = in_each_state(model)
    held = rows.pop("processing")
    before, then = {state: stored(row) for state, row in rows.items()}, facts(held)
    assert model.objects.take_back() == 1
    assert {state: stored(row) for state, row in rows.items()} == before
    now = facts(held)
    assert (now.status, now.iteration) == ("open", then.iteration + 1)
    assert (now.claimed_by, now.claimed_at, now.expires_at) == (None, None, None)
    if has(model, "attempts"):
        assert (now.attempts, now.not_before) == (then.attempts, then.not_before)
    with pytest.raises(ClaimLost):
        held.claim.complete()


@pytest.mark.parametrize("model", [Child, CompositeKey])
def test_rows_that_wait_run_at_a_moment_or_now(model: Any) -> None:
    """Others keep their turn, and a row is marked to be claimed alone by no moment; without the column none waits."""
    hour, moment = timedelta(hours=1), timezone.now()
    moments = moment, moment + hour, QUARANTINED
    due, waiting, alone = (make(model, not_before=at)[0] for at in moments)
    before = [stored(due), stored(alone)]
    assert model.objects.run_at(moment + 3 * hour) == 1
    assert abs(facts(waiting).not_before - moment - 3 * hour) < hour
    assert model.objects.run_at(datetime.max) == 1
    assert model.objects.due().count() == 2
    assert [model.objects.run_at(), model.objects.run_at()] == [1, 0]
    make(model, not_before=moment + hour)
    assert model.objects.run_at(datetime.min.replace(tzinfo=timezone.get_fixed_timezone(330))) == 1
    assert model.objects.due().filter(pk=waiting.pk).exists()
    assert [stored(due), stored(alone)] == before
    assert ClaimOnly.objects.run_at() == 0


@TABLES
def test_the_statements_of_a_chunk_are_as_long_however_many_went_before(
    model: Any, settings: Any
) -> None:
    settings.TASKCLAIM = {"CHUNK_SIZE": 1}
    make(model, 12)
    with CaptureQueriesContext(connection) as sent:
        assert model.objects.pause_rows() == 12
    lengths = [len(one["sql"]) for one in sent.captured_queries]
    half = len(lengths) // 2
    assert max(lengths[half:]) < max(lengths[:half]) + 9, "keys may have a digit more"
