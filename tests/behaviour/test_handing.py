"""A claim that passes from one holder to another: handed over by its token, or taken over by an operator's word."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models.functions import Length
from django.test import override_settings
from django.utils import timezone

from django_taskclaim.control.models import OperatorAct
from django_taskclaim.control.reading import history
from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.people import holder_of, name_of, user_of
from django_taskclaim.signals import rows_handed_over
from django_taskclaim.switch import pause, resume
from tests.behaviour.models import EveryField
from tests.behaviour.support import ROW_LOCKS, Rival, facts, lose, set_raw, stored
from tests.factories import make
from tests.testapp.models import Author, CompositeKey, Photo

pytestmark = pytest.mark.django_db

Lapse = Callable[[Any], None]
MINE, THEIRS = "user:1", "user:2"

#: While this is in force, histories are kept.
KEPT = override_settings(TASKCLAIM={"HISTORY": ["testapp.Photo"]})


def claimed(model: Any, n: int = 1, who: str = MINE, **options: Any) -> list[Any]:
    make(model, n)
    rows: list[Any] = model.objects.claim_batch(n, claimed_by=who, **options)
    return rows


# Hand over


def test_a_row_handed_over_is_the_other_persons_and_nobody_elses(kind_of_table: Any) -> None:
    rows = claimed(kind_of_table, 3)
    before = facts(rows[0])
    assert kind_of_table.objects.hand_over(rows[:2], to=THEIRS) == 2
    now = facts(rows[0])
    assert (now.status, now.claimed_by, now.iteration) == ("processing", THEIRS, 1)
    assert now.expires_at >= before.expires_at
    for verb in (rows[0].claim.complete, rows[0].claim.renew, rows[0].claim.release):
        with pytest.raises(ClaimLost):
            verb()
    theirs = kind_of_table.objects.holdings(THEIRS)
    assert {row.pk for row in theirs} == {row.pk for row in rows[:2]}
    assert kind_of_table.objects.complete(theirs) == 2
    rows[2].claim.complete()


def test_a_lease_handed_over_is_as_long_as_asked_and_never_shorter() -> None:
    long, short = claimed(Photo, 2, lease=3600)
    Photo.objects.hand_over(long, to=THEIRS, lease=60)
    Photo.objects.hand_over(short, to=THEIRS, lease=7200)
    assert facts(long).expires_at - timezone.now() > timedelta(minutes=50)
    assert facts(short).expires_at - timezone.now() > timedelta(minutes=110)


def test_a_lost_claim_is_not_handed_over() -> None:
    kept, gone = claimed(Photo, 2)
    lose(gone, "user:3")
    before = stored(gone)
    with pytest.raises(ClaimLost) as raised:
        Photo.objects.hand_over([kept, gone], to=THEIRS)
    assert (raised.value.lost, raised.value.written) == ([gone], [kept])
    assert stored(gone) == before


def test_a_row_is_handed_over_to_people_only_and_nothing_is_lost_by_a_wrong_name() -> None:
    (row,) = claimed(Photo)
    for wrong in ("worker@host:1#2", "", "x" * 201):
        with pytest.raises(ValueError, match="to "):
            row.claim.hand_over(wrong)
    assert row.claim.check()


def test_an_undone_hand_over_leaves_the_claim_standing() -> None:
    (row,) = claimed(Photo)
    with transaction.atomic():
        row.claim.hand_over(THEIRS)
        transaction.set_rollback(True)
    row.claim.complete()
    assert facts(row).claimed_by == MINE


def test_a_hand_over_is_told_and_kept_in_the_history(
    django_capture_on_commit_callbacks: Any,
) -> None:
    heard: list[Any] = []

    def hear(rows: Any, to: str, **kwargs: Any) -> None:
        heard.append(([row.pk for row in rows], to))

    rows_handed_over.connect(hear)
    (row,) = claimed(Photo)
    with KEPT, django_capture_on_commit_callbacks(execute=True):
        row.claim.hand_over(THEIRS)
    rows_handed_over.disconnect(hear)
    assert heard == [([row.pk], THEIRS)]
    (event,) = history(Photo, row.pk, using="default")
    assert (event.event, event.holder, event.detail) == ("handed over", MINE, f"to {THEIRS}")


# Take over


def test_what_others_hold_is_taken_over_and_the_rest_left_alone(kind_of_table: Any) -> None:
    (held,) = claimed(kind_of_table)
    (own,) = claimed(kind_of_table, who=THEIRS)
    (done,) = claimed(kind_of_table)
    done.claim.complete()
    (waiting,) = make(kind_of_table)
    others = {row.pk: stored(row) for row in (own, done, waiting)}
    rows = kind_of_table.objects.all()
    assert rows.take_over(by=THEIRS, reason="she is ill", lease=3600) == 1
    assert {row.pk: stored(row) for row in (own, done, waiting)} == others
    now = facts(held)
    assert (now.status, now.claimed_by, now.iteration) == ("processing", THEIRS, 1)
    assert now.expires_at - timezone.now() > timedelta(minutes=50)
    with pytest.raises(ClaimLost):
        held.claim.complete()
    assert kind_of_table.objects.complete(rows.holdings(THEIRS)) == 2
    assert rows.take_over(by=THEIRS, reason="again") == 0


def test_a_workers_row_may_be_taken_over_and_one_without_a_holder() -> None:
    make(Photo, 2)
    worker, nobody = Photo.objects.claim_batch(2)
    set_raw(nobody, "claimed_by", "NULL")
    assert Photo.objects.take_over(by=MINE, reason="I do these by hand") == 2
    assert {facts(row).claimed_by for row in (worker, nobody)} == {MINE}


@pytest.mark.parametrize("reason", ["", "  ", None])
def test_a_take_over_has_a_reason_and_a_name(reason: Any) -> None:
    (row,) = claimed(Photo)
    with pytest.raises(ValueError, match="reason"):
        Photo.objects.take_over(by=THEIRS, reason=reason)
    with pytest.raises(ValueError, match="by "):
        Photo.objects.take_over(by="worker#1", reason="no person")
    assert row.claim.check()


@pytest.mark.skipif(not ROW_LOCKS, reason="needs row locks")
@pytest.mark.django_db(transaction=True)
def test_a_locked_row_is_not_taken_over_and_not_waited_for(rival: Rival) -> None:
    first, _second = claimed(Photo, 2)
    rival.lock(first)
    assert Photo.objects.take_over(by=THEIRS, reason="ill") == 1
    assert facts(first).claimed_by == MINE


def test_a_take_over_is_recorded_with_who_and_why(django_capture_on_commit_callbacks: Any) -> None:
    ada = User.objects.create_user("ada", first_name="Ada", last_name="Lovelace")
    (row,) = claimed(Photo, who="user:0")
    with KEPT, django_capture_on_commit_callbacks(execute=True):
        Photo.objects.take_over(by=holder_of(ada), reason="she is ill")
    act = OperatorAct.objects.get()
    assert (act.act, act.rows, act.by) == ("take over", 1, "Ada Lovelace")
    assert (act.reason, act.key, act.model) == ("she is ill", str(row.pk), "testapp.photo")
    (event,) = history(Photo, row.pk, using="default")
    assert (event.event, event.holder, event.detail) == ("taken over", holder_of(ada), "she is ill")


# Looking


def test_holdings_are_mine_alone_in_order_and_extended_when_asked(
    kind_of_table: Any, let_lease_lapse: Lapse
) -> None:
    rows = claimed(kind_of_table, 3, lease=60)
    claimed(kind_of_table, 1, THEIRS)
    before = facts(rows[0]).expires_at
    found = kind_of_table.objects.holdings(MINE)
    assert [row.pk for row in found] == [row.pk for row in rows]
    assert facts(rows[0]).expires_at == before
    let_lease_lapse(rows[0])
    kind_of_table.objects.holdings(MINE, lease=3600)
    assert facts(rows[0]).expires_at - timezone.now() > timedelta(minutes=50)
    assert kind_of_table.objects.complete(found) == 3
    assert kind_of_table.objects.holdings(MINE, lease=60) == []


def test_holdings_are_whole_rows_by_one_query(shape: Any, django_assert_num_queries: Any) -> None:
    (row,) = claimed(shape)
    with django_assert_num_queries(1):
        (found,) = shape.objects.holdings(MINE)
        assert stored_fields(found) == stored_fields(row)
        assert found.claim.token == row.claim.token


def stored_fields(row: Any) -> list[Any]:
    return [getattr(row, field.attname) for field in row._meta.concrete_fields]


def test_holdings_keep_what_the_queryset_selects_joins_and_adds(
    django_assert_num_queries: Any,
) -> None:
    for name in ("Ada", "Ben"):
        EveryField.objects.create(author=Author.objects.create(name=name), text=name, big=1)
    EveryField.objects.claim_batch(2, claimed_by=MINE)
    rows = EveryField.objects.annotate(letters=Length("text"))
    cases: dict[str, Any] = {
        "joined": rows.select_related("author"),
        "joined in part": rows.select_related("author").only("author__name", "big"),
        "deferred": rows.defer("text", "claimed_by", "iteration", "attempts").select_related(
            "author"
        ),
        "only": rows.only("big"),
    }
    for name, asked in cases.items():
        with django_assert_num_queries(1):
            found = asked.holdings(MINE)
            assert [(row.letters, row.big) for row in found] == [(3, 1), (3, 1)], name
            if "joined" in name:
                assert [row.author.name for row in found] == ["Ada", "Ben"]
            if name != "joined":
                assert "text" in found[0].get_deferred_fields()
    with django_assert_num_queries(2):
        found = EveryField.objects.prefetch_related("author").holdings(MINE)
        assert [row.author.name for row in found] == ["Ada", "Ben"]
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
    assert rows.none().why_empty(MINE).ready == 0


def test_a_pause_is_reason_enough() -> None:
    make(Photo)
    pause(Photo, using="default")
    assert str(Photo.objects.why_empty()) == "paused"
    resume(Photo, using="default")
    assert Photo.objects.why_empty().ready == 1


# Names


def test_a_users_name_is_found_and_what_is_only_alike_is_nobodys() -> None:
    ben = User.objects.create_user("ben")
    assert user_of(holder_of(ben)) == ben
    assert name_of(holder_of(ben)) == "ben"
    for other in (f"user:0{ben.pk}", f"user:{ben.pk} ", "user:x", "user:", "ben", "", None):
        assert user_of(other) is None
    assert name_of("worker@host:17#2f") == "worker@host:17"
    with pytest.raises(ValueError, match="logged in"):
        holder_of(User())


async def _all() -> tuple[int, int, int, int]:
    (row,) = await Photo.objects.aclaim_batch(1, claimed_by=MINE)
    handed = await Photo.objects.ahand_over(row, to=THEIRS)
    taken = await Photo.objects.all().atake_over(by=MINE, reason="back")
    mine = await Photo.objects.aholdings(MINE)
    await mine[0].claim.ahand_over(THEIRS)
    return handed, taken, len(mine), (await Photo.objects.awhy_empty(MINE)).held


@pytest.mark.django_db(transaction=True)
def test_async_twins() -> None:
    make(CompositeKey)
    make(Photo)
    assert async_to_sync(_all)() == (1, 1, 1, 1)
