"""Completion policies: what is common to all, and those that keep the row."""

import copy
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models.signals import post_save, pre_save

from django_taskclaim import handler
from django_taskclaim.completion import Archive, Clear, Delete
from django_taskclaim.exceptions import ClaimLost, CommitUndecided, TaskClaimError
from django_taskclaim.handlers import unregister
from django_taskclaim.signals import rows_completed
from django_taskclaim.testing import run_due
from tests.factories import make
from tests.proxy import swallowed, withheld
from tests.querysets.completing import claimed, gone, refused
from tests.querysets.models import Complaint, Parcel, ParcelArchive
from tests.querysets.support import (
    DEADLINE,
    clock,
    elsewhere,
    facts,
    fresh,
    has,
    lose,
    set_raw,
    stored,
)
from tests.testapp.models import Child, ChildOwnsClaim, ClaimOnly, CompositeKey, Effect, Photo

pytestmark = pytest.mark.django_db

Rule = Callable[..., None]

POLICIES: dict[str, Any] = {
    "mark": "mark",
    "delete": Delete(),
    "cascade": Delete(cascade=True),
    "archive": Archive(ParcelArchive),
    "clear": Clear(),
    "save": "save",
    "function": lambda rows: None,
}

#: Those that leave nothing by which a completion could be recognised later.
TRACELESS = ["delete", "cascade", "archive", "clear"]


@pytest.fixture(params=POLICIES)
def policy(request: pytest.FixtureRequest, rule: Rule) -> str:
    """Each policy in turn, for ``Parcel``."""
    rule(Parcel, completion=POLICIES[request.param])
    return str(request.param)


# What is common to all


@pytest.mark.promise(3)
def test_a_lost_claim_is_completed_under_no_policy(policy: str) -> None:
    rows = claimed(Parcel, 3)
    lose(rows[1])
    before = stored(rows[1])
    refused(rows, [rows[1]])
    assert stored(rows[1]) == before
    assert ParcelArchive.objects.count() == (2 if policy == "archive" else 0)


@pytest.mark.promise(4)
@pytest.mark.parametrize("model", [Photo, ClaimOnly, Child, CompositeKey])
def test_complete_is_final_until_a_reset(model: Any) -> None:
    """Neither the reaper nor a copy of the claim, as an old worker has it, opens or changes the row."""
    (row,) = claimed(model, 1)
    old = copy.deepcopy(row)
    row.claim.complete()
    set_raw(row, "expires_at", clock("-1 HOUR"))
    before = stored(row)
    assert model.objects.release_expired() == 0
    late = old.claim
    for write in (late.renew, late.release, late.complete, old.save, old.delete):
        with pytest.raises(ClaimLost), transaction.atomic():
            write()
    with pytest.raises(ClaimLost):
        late.fail("late")
    row.save()
    assert model.objects.claim_batch(1) == []
    assert stored(row) == before
    assert (model.objects.reset(), model.objects.reset(complete=True)) == (0, 1)
    assert len(model.objects.claim_batch(1)) == 1


def test_a_completion_that_is_rolled_back_leaves_row_and_claim(policy: str) -> None:
    (row,) = claimed(Parcel, 1)
    before = stored(row)
    with transaction.atomic():
        row.claim.complete()
        assert stored(row) != before
        transaction.set_rollback(True)
    assert (stored(row), ParcelArchive.objects.count()) == (before, 0)
    assert row.claim.check()
    row.claim.complete()
    with pytest.raises(ClaimLost):
        row.claim.complete()


def test_every_completion_sends_its_signal(
    policy: str, django_capture_on_commit_callbacks: Any
) -> None:
    heard: list[Any] = []

    def hear(sender: Any, rows: list[Any], using: str, **kwargs: Any) -> None:
        heard.append((sender, rows, using))

    rows = claimed(Parcel, 2)
    rows_completed.connect(hear, sender=Parcel)
    try:
        with django_capture_on_commit_callbacks(execute=True):
            Parcel.objects.complete(rows)
    finally:
        rows_completed.disconnect(hear, sender=Parcel)
    assert heard == [(Parcel, rows, "default")]


def test_rows_of_several_models_each_follow_their_own_policy(rule: Rule) -> None:
    rule(Photo, completion="delete")
    rule(ClaimOnly, completion="clear")
    (photo,), (plain,), (child,) = claimed(Photo, 1), claimed(ClaimOnly, 1), claimed(Child, 1)
    assert Photo.objects.complete([photo, plain, child]) == 3
    assert gone(photo, photo.pk)
    assert (facts(plain).status, facts(child).status) == ("open", "complete")


@pytest.mark.promise(3)
@pytest.mark.parametrize("model", [Parcel, Child])
@pytest.mark.parametrize("how", ["delete", "cascade", "clear"])
def test_a_completion_that_waited_for_the_reaper_has_lost(
    model: Any, how: str, rule: Rule, transactional_db: None
) -> None:
    """The statement looks again, under the lock, at what was true when it began."""
    rule(model, completion=POLICIES[how])
    (row,) = claimed(model, 1)
    with transaction.atomic():
        set_raw(row, "expires_at", clock("-1 HOUR"))
        assert model.objects.release_expired() == 1
        completing = elsewhere(lambda: model.objects.complete([row]))
    with pytest.raises(ClaimLost):
        completing.result(DEADLINE)
    assert (facts(row).status, facts(row).iteration, facts(row).completed_at) == ("open", 1, None)


async def later(rows: list[Any]) -> None:
    """A policy cannot wait for this."""


#: A word of a policy that needs an argument, no word of ours, no policy, a class in place of one.
NO_POLICIES = ["archive", "remove", 7, Delete, None, later]


@pytest.mark.once
@pytest.mark.parametrize(
    ("declare", "error"),
    [
        *((partial(handler, Photo, completion=wrong), TypeError) for wrong in NO_POLICIES),
        (lambda: Clear(every=0), ValueError),
        (lambda: Archive(7), TypeError),  # type: ignore[arg-type]
        (lambda: Archive(ParcelArchive, leave_out="note"), TypeError),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(declare: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        declare()(lambda photo: None)


# A lost answer to the COMMIT


@pytest.mark.promise(5)
@pytest.mark.parametrize("policy", TRACELESS, indirect=True)
def test_a_completion_without_a_trace_is_undecided(commits: Any, policy: str) -> None:
    """The rows are gone or open again; nobody knows by whom, and nothing is written twice."""
    make(Parcel, 2)
    rows = Parcel.objects.claim_batch(2)
    commits.arm(swallowed)
    with pytest.raises(CommitUndecided) as caught:
        Parcel.objects.complete(rows)
    assert caught.value.undecided == rows
    assert all(row.claim.lost for row in rows)
    if policy == "clear":
        assert [(facts(row).status, facts(row).iteration) for row in rows] == [("open", 1)] * 2
    else:
        assert not any(stored(row) for row in rows)
    assert ParcelArchive.objects.count() == (2 if policy == "archive" else 0)


@pytest.mark.promise(5)
@pytest.mark.parametrize("policy", TRACELESS, indirect=True)
def test_a_completion_that_was_not_committed_is_sent_again(commits: Any, policy: str) -> None:
    make(Parcel, 2)
    rows = Parcel.objects.claim_batch(2)
    commits.arm(withheld)
    assert Parcel.objects.complete(rows) == 2
    assert commits.sprung.is_set()
    assert Parcel.objects.count() == (2 if policy == "clear" else 0)
    assert ParcelArchive.objects.count() == (2 if policy == "archive" else 0)


@pytest.mark.promise(5)
@pytest.mark.parametrize("arrives", [True, False], ids=["committed", "not committed"])
def test_the_function_of_a_policy_takes_effect_once(
    commits: Any, rule: Rule, arrives: bool
) -> None:
    """It is called again where the first COMMIT did not arrive."""
    called: list[int] = []

    def archive(rows: list[Any]) -> None:
        called.append(len(rows))
        for row in rows:
            ParcelArchive.objects.create(
                pk=row.pk, counter=1, weight=1, completed_at=row.completed_at
            )

    rule(Parcel, completion=archive)
    make(Parcel, 2)
    rows = Parcel.objects.claim_batch(2)
    commits.arm(swallowed if arrives else withheld)
    assert Parcel.objects.complete(rows) == 2
    assert ParcelArchive.objects.count() == 2
    assert called == ([2] if arrives else [2, 2])
    assert [facts(row).status for row in rows] == ["complete"] * 2


# "clear": open again


@pytest.mark.parametrize("model", [Photo, ClaimOnly, Child, ChildOwnsClaim, CompositeKey])
def test_a_cleared_row_is_open_again(model: Any, rule: Rule) -> None:
    rule(model, completion="clear", backoff=lambda failures: 0)
    (row,) = claimed(model, 1)
    row.claim.fail("the first time")
    (row,) = model.objects.claim_batch(1)
    row.note, before = "result", row.claim.token.iteration
    row.claim.complete(update_fields=["note"])
    now = facts(row)
    assert (now.status, now.iteration, fresh(row).note) == ("open", before + 1, "result")
    assert (now.claimed_by, now.claimed_at, now.expires_at) == (None, None, None)
    if has(model, "attempts", "completed_at"):
        assert (now.attempts, now.last_error, now.error_class) == (0, "", "")
        assert now.completed_at is not None
    with pytest.raises(ClaimLost):
        row.claim.complete()
    (again,) = model.objects.claim_batch(1)
    again.claim.release()
    assert getattr(facts(again), "completed_at", None) == getattr(now, "completed_at", None)


@pytest.mark.parametrize("every", [3600, timedelta(hours=1)])
def test_a_cleared_row_is_due_after_its_interval(every: Any, rule: Rule) -> None:
    rule(Photo, completion=Clear(every=every))
    (row,) = claimed(Photo, 1)
    row.claim.complete()
    assert Photo.objects.claim_batch(1) == []
    assert facts(row).not_before - facts(row).completed_at == timedelta(hours=1)
    assert row.not_before == facts(row).not_before
    set_raw(row, "not_before", clock("-1 SECOND"))
    assert Photo.objects.claim_batch(1) == [row]


def test_cleared_rows_take_turns(rule: Rule) -> None:
    """Otherwise those with the lowest keys would be claimed for ever."""
    rule(Photo, completion="clear")
    rows = make(Photo, 6)
    turns = set()
    for _ in range(3):
        batch = Photo.objects.claim_batch(2)
        turns |= {row.pk for row in batch}
        Photo.objects.complete(batch)
    assert turns == {row.pk for row in rows}


# A function of the user's


def test_a_function_gets_the_completed_rows_in_their_transaction(rule: Rule) -> None:
    heard: list[Any] = []

    def listen(rows: list[Photo]) -> None:
        for row in rows:
            heard.append((row.pk, row.status, facts(row).status, connection.in_atomic_block))
            row.url = "seen"
            row.save()

    rule(Photo, completion=listen)
    rows = claimed(Photo, 3)
    lose(rows[1])
    refused(rows, [rows[1]])
    assert heard == [(row.pk, "complete", "complete", True) for row in (rows[0], rows[2])]
    assert (fresh(rows[0]).url, facts(rows[0]).status) == ("seen", "complete")


def test_what_a_function_raises_rolls_the_completion_back(rule: Rule) -> None:
    def refuse(rows: list[Photo]) -> None:
        Complaint.objects.create()
        raise LookupError("not yet")

    rule(Photo, completion=refuse)
    (row,) = claimed(Photo, 1)
    before = stored(row)
    row.note = "result"
    with pytest.raises(LookupError, match="not yet") as caught:
        row.claim.complete(update_fields=["note"])
    assert stored(row) == before
    assert (row.status, Complaint.objects.exists()) == ("processing", False)
    row.claim.fail(caught.value)
    assert facts(row).attempts == 1


@pytest.mark.promise(5)
def test_a_transaction_that_the_function_lost_is_noticed(
    transactional_db: None, rule: Rule
) -> None:
    """A deadlock undoes all of it on MySQL and MariaDB, also where the function swallows the error."""
    rule(Photo, completion=lambda rows: connection.connection.rollback())
    (row,) = claimed(Photo, 1)
    with pytest.raises(TaskClaimError):
        row.claim.complete()
    connection.close()
    assert facts(row).status == "processing"
    rule(Photo)
    row.claim.complete()


# "save": each row by its own save()


@pytest.mark.parametrize("model", [Photo, Child, ChildOwnsClaim, CompositeKey])
def test_save_completes_a_row_of_every_kind(model: Any, rule: Rule) -> None:
    rule(model, completion="save")
    rows = claimed(model, 3)
    for row in rows:
        row.note = "result"
    lose(rows[1])
    before = stored(rows[1])
    refused(rows, [rows[1]])
    assert stored(rows[1]) == before
    for row in (rows[0], rows[2]):
        assert (facts(row).status, fresh(row).note) == ("complete", "result")
        row.note = "an ordinary row again"
        row.save()
        assert (facts(row).status, fresh(row).note) == ("complete", "an ordinary row again")


@pytest.mark.parametrize("named", [None, ["width"]])
def test_save_sends_the_signals_of_each_row(rule: Rule, named: list[str] | None) -> None:
    """Receivers see a row that is complete, in the transaction that completes it."""
    heard: list[Any] = []

    def listen(sender: Any, instance: Any, update_fields: Any, **kwargs: Any) -> None:
        assert instance.get_deferred_fields() == set()
        assert instance.completed_at == facts(instance).completed_at
        heard.append((instance.pk, instance.status, update_fields and set(update_fields)))

    rule(Photo, completion="save")
    rows = claimed(Photo, 2)
    for row in rows:
        row.width, row.height = 640, 480
    for signal in (pre_save, post_save):
        signal.connect(listen, sender=Photo)
    try:
        Photo.objects.complete(rows, update_fields=named or ())
    finally:
        for signal in (pre_save, post_save):
            signal.disconnect(listen, sender=Photo)
    assert heard == [
        (row.pk, "complete", named and set(named)) for row in rows for _ in ("pre", "post")
    ]
    stored_values = Photo.objects.values_list("status", "width", "height")
    assert set(stored_values) == {("complete", 640, None if named else 480)}


@pytest.mark.parametrize(
    ("kind", "options"),
    [("plain", {}), ("async", {}), ("batch", {"batch": True}), ("atomic", {"atomic": True})],
)
def test_in_a_worker_only_the_row_whose_save_raises_fails(
    kind: str, options: dict[str, Any], monkeypatch: Any
) -> None:
    usual = Photo.save

    def save(self: Any, *args: Any, **kwargs: Any) -> None:
        self.counter += 1
        usual(self, *args, **kwargs)
        Effect.objects.create(key=str(self.pk))
        if self.note == "bad":
            raise LookupError("refused")

    def measure(given: Any) -> None:
        for photo in given if kind == "batch" else [given]:
            photo.width = 640

    async def measure_async(photo: Any) -> None:
        photo.width = 640

    rows = [*make(Photo, 5), *make(Photo, 1, note="bad")]
    monkeypatch.setattr(Photo, "save", save)
    limits = {"max_attempts": 1, "timeout": 5}
    register = handler(Photo, completion="save", **limits, **options)
    register(measure_async if kind == "async" else measure)
    try:
        ran = run_due(Photo)
    finally:
        unregister(Photo)
    assert (ran.completed, ran.failed) == (5, 1)
    good = Photo.objects.filter(status="complete")
    assert set(good.values_list("width", "counter")) == {(640, 1)}
    bad = Photo.objects.get(pk=rows[-1].pk)
    assert (bad.status, bad.width, bad.last_error) == ("failed", None, "refused")
    assert Effect.objects.count() == 5
