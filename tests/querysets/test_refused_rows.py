"""Rows that the database lets nobody write keep no other row from being claimed, renewed, put back or reset."""

import logging
from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError, transaction

from django_taskclaim.claim import carried_claim
from django_taskclaim.querysets import isolating
from django_taskclaim.querysets.claiming import bare
from tests.factories import make
from tests.meanwhile import column_away
from tests.querysets.refusing import FROZEN, SAID, WAYS, refused
from tests.querysets.support import facts, keys, lapse, quoted
from tests.testapp.models import Photo, ReservedWords
from tests.testapp.odd_models import ChildOfTwo, TwoParents

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.promise(10)]


def photos(n: int, *frozen: int) -> list[int]:
    """Make *n* rows, those at the places *frozen* to be refused, and return their keys."""
    return keys(make(Photo, n, note=lambda place: FROZEN if place in frozen else ""))


def logged(caplog: Any) -> list[str]:
    """Return the keys of the rows that were logged as refused, in that order."""
    return [
        key
        for record in caplog.records
        if getattr(record, "event", "") == "refused" and record.levelno == logging.ERROR
        for key in record.keys
    ]


@pytest.mark.parametrize("way", WAYS)
def test_a_claim_takes_all_others_and_names_the_row(way: str, strategy: str, caplog: Any) -> None:
    made = photos(60, 0, 7, 59)
    good = [key for place, key in enumerate(made) if place not in (0, 7, 59)]
    with refused(Photo, way):
        assert keys(Photo.objects.claim_batch(30)) == good[:30]
        assert logged(caplog) == [str(made[0]), str(made[7])]
        assert ("refusing" if way == "check" else SAID) in caplog.text
        assert keys(Photo.objects.claim_batch(30)) == good[30:]
        assert Photo.objects.claim_batch(30) == []
    assert logged(caplog) == [str(made[place]) for place in (0, 7, 59)]


def test_a_claim_of_one_row_gets_it_behind_several_that_are_refused() -> None:
    """Also through a queryset that would lock its rows."""
    made = photos(8, *range(6))
    with refused(Photo):
        assert keys(Photo.objects.select_for_update().claim_batch(1)) == made[6:7]


def test_inside_a_callers_transaction_the_claim_leaves_that_usable() -> None:
    made = photos(4, 1)
    with refused(Photo), transaction.atomic():
        first = Photo.objects.create()
        rows = Photo.objects.claim_batch(10, durable=False)
        assert keys(rows) == [made[0], made[2], made[3], first.pk]
        assert Photo.objects.complete(rows) == 4
    assert Photo.objects.progress().complete == 4


def test_a_person_keeps_what_could_be_extended_and_gets_others() -> None:
    made = photos(3)
    Photo.objects.claim_batch(3, claimed_by="user:ada")
    Photo.objects.filter(pk=made[1]).update(note=FROZEN)
    more = photos(3, 0)
    with refused(Photo):
        rows = Photo.objects.claim_batch(4, claimed_by="user:ada", include_held=True)
        assert keys(rows) == [made[0], made[2], *more[1:]]


def test_an_error_of_all_rows_is_raised_and_blames_none(caplog: Any) -> None:
    photos(3)
    with column_away(Photo, "claimed_at"), pytest.raises(DatabaseError, match="claimed_at"):
        Photo.objects.claim_batch(3)
    assert logged(caplog) == []
    assert len(Photo.objects.claim_batch(3)) == 3


def test_a_table_whose_first_rows_are_refused_is_claimed_from_after_a_few_errors() -> None:
    """One call finds ten of them at most, and raises the error where it has claimed none."""
    made = photos(40, *range(35))
    with refused(Photo):
        for _ in range(3):
            with pytest.raises(DatabaseError, match=SAID):
                Photo.objects.claim_batch(20)
        assert keys(Photo.objects.claim_batch(20)) == made[35:]


def test_many_refused_rows_cost_no_claim_the_others_among_them() -> None:
    made = photos(40, *range(0, 40, 2))
    with refused(Photo):
        assert keys(Photo.objects.claim_batch(20))[:9] == made[1:18:2]


@pytest.mark.parametrize("model", [TwoParents, ChildOfTwo])
def test_a_row_is_left_out_by_the_key_of_its_claim_and_no_other_row_with_it(model: Any) -> None:
    make(model, 3, id=lambda n: n + 101, key=lambda n: n + 103)
    with refused(ReservedWords, when=f"OLD.{quoted('key')} = 103"):
        assert keys(model.objects.claim_batch(1)) == [102]
        (row,) = model.objects.claim_batch(2)
    assert bare(model, carried_claim(row)) == row


def test_a_renewal_extends_all_others(caplog: Any) -> None:
    photos(9)
    rows = Photo.objects.claim_batch(9, lease=60)
    frozen, *others = rows
    Photo.objects.filter(pk=frozen.pk).update(note=FROZEN)
    ends = facts(frozen).expires_at
    with refused(Photo):
        assert Photo.objects.renew(rows, timedelta(hours=1)) == 8
    assert logged(caplog) == [str(frozen.pk)]
    assert facts(frozen).expires_at == ends
    assert all(facts(row).expires_at - ends > timedelta(minutes=50) for row in others)
    assert Photo.objects.complete(rows) == 9


def test_the_reaper_and_operators_change_all_others(settings: Any, caplog: Any) -> None:
    settings.TASKCLAIM = {"CHUNK_SIZE": 5}
    photos(17, 3, 16)
    rows = Photo.objects.claim_batch(17)
    lapse(rows)
    with refused(Photo):
        assert Photo.objects.release_expired(5) == 5
        assert Photo.objects.release_expired() == 10
        assert Photo.objects.release_expired() == 0
        assert set(logged(caplog)) == {str(rows[3].pk), str(rows[16].pk)}
    assert Photo.objects.release_expired() == 2
    with refused(Photo):
        assert Photo.objects.pause_rows() == 15
        assert Photo.objects.resume_rows() == 15
        assert Photo.objects.fail_rows("no more of them") == 15
        assert Photo.objects.reset() == 15


def test_an_operator_is_not_kept_waiting_by_many_refused_rows() -> None:
    """The tenth one ends the verb with the error of the database."""
    photos(40, *range(40))
    with refused(Photo), pytest.raises(DatabaseError):
        Photo.objects.pause_rows()
    assert len(isolating.remembered) == isolating.MOST_ROWS


def test_an_operators_text_that_no_row_can_store_is_stored_in_escapes(caplog: Any) -> None:
    photos(3)
    with refused(Photo, when="NEW.last_error = 'naïve'"):
        assert Photo.objects.fail_rows("naïve") == 3
    assert set(Photo.objects.failed().values_list("last_error", flat=True)) == {"na\\xefve"}
    assert logged(caplog) == []
