"""An operator's verbs over rows: ``fail_rows``, ``take_back`` and ``run_at``."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models.functions import Length
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.fields import QUARANTINED
from django_taskclaim.switch import pause
from tests.commands import in_each_state
from tests.factories import make, make_claimed
from tests.querysets.models import EveryField
from tests.querysets.support import facts, has, keys, lose, set_raw, stored
from tests.testapp.models import Author, Child, ClaimOnly, CompositeKey, Photo

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
    finding_keys = [one["sql"] for one in sent.captured_queries if " LIMIT " in one["sql"]]
    assert len(finding_keys) == 1, "SQLite would sort all rows again for each chunk"


# A claim that passes from one holder to another: handed over by its token, or taken over by an operator's word

MINE, THEIRS = "user:1", "user:2"


def claimed(model: Any, n: int = 1, who: str = MINE, **options: Any) -> list[Any]:
    return make_claimed(model, n, claimed_by=who, **options)


@pytest.mark.promise(3)
def test_a_row_handed_over_is_the_other_persons_and_nobody_elses(kind_of_table: Any) -> None:
    kept, *rows = claimed(kind_of_table, 3)
    before = facts(rows[0])
    assert kind_of_table.objects.hand_over(rows, to=THEIRS) == 2
    now = facts(rows[0])
    assert (now.status, now.claimed_by, now.iteration) == ("processing", THEIRS, 1)
    assert now.expires_at >= before.expires_at
    for verb in (rows[0].claim.complete, rows[0].claim.renew, rows[0].claim.release):
        with pytest.raises(ClaimLost):
            verb()
    theirs = kind_of_table.objects.holdings(THEIRS)
    assert keys(theirs) == keys(rows)
    assert kind_of_table.objects.complete(theirs) == 2
    lose(kept, "user:3")
    before = stored(kept)
    with pytest.raises(ClaimLost):
        kept.claim.hand_over(THEIRS)
    assert stored(kept) == before


def test_a_wrong_name_or_a_rollback_leaves_the_claim_standing() -> None:
    (row,) = claimed(Photo)
    for wrong in ("worker@host:1#2", "", "x" * 201):
        with pytest.raises(ValueError, match="to "):
            row.claim.hand_over(wrong)
    with transaction.atomic():
        row.claim.hand_over(THEIRS)
        transaction.set_rollback(True)
    row.claim.complete()
    assert facts(row).claimed_by == MINE


@pytest.mark.promise(3)
def test_what_others_hold_is_taken_over_and_the_rest_left_alone(kind_of_table: Any) -> None:
    (held,) = claimed(kind_of_table)
    (own,) = claimed(kind_of_table, who=THEIRS)
    (done,) = claimed(kind_of_table)
    done.claim.complete()
    others = [own, done, *make(kind_of_table)]
    before = [stored(row) for row in others]
    rows = kind_of_table.objects.all()
    assert rows.take_over(by=THEIRS, reason="she is ill", lease=3600) == 1
    assert [stored(row) for row in others] == before
    now = facts(held)
    assert (now.status, now.claimed_by, now.iteration) == ("processing", THEIRS, 1)
    assert now.expires_at - timezone.now() > timedelta(minutes=50)
    with pytest.raises(ClaimLost):
        held.claim.complete()
    assert kind_of_table.objects.complete(rows.holdings(THEIRS)) == 2


def test_a_take_over_needs_a_reason() -> None:
    worker, nobody = make_claimed(Photo, 2)
    set_raw(nobody, "claimed_by", "NULL")
    for by, reason in ((THEIRS, "  "), (THEIRS, None), ("worker#1", "no person")):
        with pytest.raises(ValueError, match=r"reason|by "):
            Photo.objects.take_over(by=by, reason=reason)  # type: ignore[arg-type]
    assert Photo.objects.take_over(by=THEIRS, reason="I do these by hand") == 2
    assert {facts(row).claimed_by for row in (worker, nobody)} == {THEIRS}


def test_holdings_are_my_rows_and_stay_as_they_are(kind_of_table: Any) -> None:
    rows = claimed(kind_of_table, 3, lease=60)
    claimed(kind_of_table, 1, THEIRS)
    before = facts(rows[0]).expires_at
    found = kind_of_table.objects.holdings(MINE)
    assert keys(found) == keys(rows)
    assert facts(rows[0]).expires_at == before
    assert kind_of_table.objects.complete(found) == 3
    assert kind_of_table.objects.holdings(MINE) == []


def test_holdings_keep_what_the_queryset_selects(django_assert_num_queries: Any) -> None:
    for name in ("Ada", "Ben"):
        EveryField.objects.create(author=Author.objects.create(name=name), text=name, big=1)
    EveryField.objects.claim_batch(2, claimed_by=MINE)
    rows = EveryField.objects.annotate(letters=Length("text"))
    with django_assert_num_queries(1):
        found = rows.select_related("author").defer("text").holdings(MINE)
        assert [(row.letters, row.author.name) for row in found] == [(3, "Ada"), (3, "Ben")]
        assert "text" in found[0].get_deferred_fields()
    assert EveryField.objects.complete(found) == 2
    with pytest.raises(TypeError, match="values"):
        EveryField.objects.values("big").holdings(MINE)


def test_an_empty_answer_has_its_reason(kind_of_table: Any) -> None:
    rows = kind_of_table.objects.all()
    assert str(rows.why_empty(MINE)) == "nothing is left"
    (first, _) = claimed(kind_of_table, 2, THEIRS, lease=3600)
    claimed(kind_of_table, 1, MINE)
    why = rows.why_empty(MINE)
    assert (why.held, why.next_free, why.ready) == (2, facts(first).expires_at, 0)
    assert str(why).startswith("2 held by others, next free ")
    first.claim.release(delay=3600)
    why = rows.why_empty(MINE)
    assert (why.held, why.waiting, why.next_due) == (1, 1, facts(first).not_before)
    make(kind_of_table)
    assert rows.why_empty(MINE).ready == 1
    pause(kind_of_table, using="default")
    assert str(rows.why_empty()) == "paused"
