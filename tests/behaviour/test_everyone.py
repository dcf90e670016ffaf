"""``RetryLater(everyone=True)``: an upstream asks everybody to wait, and nobody claims rows of the model meanwhile."""

import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from django_taskclaim.dialects import DatabaseLater
from django_taskclaim.exceptions import RetryLater
from django_taskclaim.models import Switch
from django_taskclaim.overview import overview
from django_taskclaim.querysets.everyone import stop_everyone
from django_taskclaim.switch import paused_by, resume, stops_of
from django_taskclaim.switch_reading import throttle_scope
from tests.factories import make
from tests.testapp.models import Child, Parent, Photo, PhotoProxy, UuidKey

pytestmark = pytest.mark.django_db

Rule = Callable[..., None]


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def lift(model: Any) -> None:
    """Let the stop of everyone end now, as it would by itself."""
    scope = throttle_scope(model._meta.label_lower)
    Switch.objects.filter(scope=scope).update(until=DatabaseLater(seconds(-1)))


@pytest.mark.usefixtures("strategy")
def test_everybody_waits_and_goes_on_by_itself() -> None:
    make(Photo, 3)
    (row,) = Photo.objects.claim_batch(1)
    row.claim.fail(RetryLater(60, "429 Too Many Requests", everyone=True))
    assert Photo.objects.claim_batch(3) == []
    assert PhotoProxy.objects.claim_batch(3, claimed_by="user:17") == []
    lift(Photo)
    # The row itself waits for its own moment, which is the same but for the test.
    assert len(Photo.objects.claim_batch(3)) == 2


def test_the_row_is_put_back_uncounted() -> None:
    make(Photo, 1)
    (row,) = Photo.objects.claim_batch(1)
    row.claim.fail(RetryLater(60, everyone=True))
    row.refresh_from_db()
    assert (row.status, row.attempts, row.iteration) == ("open", 0, 1)


def test_other_models_go_on() -> None:
    make(Photo, 1)
    make(UuidKey, 1)
    stop_everyone(Photo, "default", seconds(60), "429")
    assert Photo.objects.claim_batch(1) == []
    assert len(UuidKey.objects.claim_batch(1)) == 1


def test_one_of_a_parent_holds_for_its_children_and_not_the_other_way_round() -> None:
    make(Child, 2)
    stop_everyone(Child, "default", seconds(60), "429")
    assert Child.objects.claim_batch(1) == []
    assert len(Parent.objects.claim_batch(1)) == 1
    lift(Child)
    stop_everyone(Parent, "default", seconds(60), "429")
    assert Child.objects.claim_batch(1) == []


@pytest.mark.django_db(databases=["default", "other"])
def test_each_row_stops_the_database_that_its_claim_is_on() -> None:
    """A queryset may read from another one, and one call may fail rows of several."""
    for using in ("default", "other"):
        Photo.objects.using(using).bulk_create([Photo(), Photo()])
    near, far = (Photo.objects.using(one).claim_batch(1)[0] for one in ("default", "other"))
    Photo.objects.fail(far, RetryLater(60, "429", everyone=True))
    assert Photo.objects.using("other").claim_batch(1) == []
    assert len(Photo.objects.claim_batch(1)) == 1
    Photo.objects.using("other").fail(near, RetryLater(60, "429", everyone=True))
    assert Photo.objects.claim_batch(1) == []


def test_without_everyone_nobody_else_waits() -> None:
    make(Photo, 2)
    (row,) = Photo.objects.claim_batch(1)
    row.claim.fail(RetryLater(60))
    assert len(Photo.objects.claim_batch(2)) == 1


def test_the_policy_can_say_so_of_an_error(rule: Rule) -> None:
    rule(Photo, errors={ConnectionError: RetryLater(30, everyone=True)})
    make(Photo, 2)
    (row,) = Photo.objects.claim_batch(1)
    row.claim.fail(ConnectionRefusedError("come back later"))
    assert Photo.objects.claim_batch(1) == []
    assert "come back later" in stops_of(Photo, using="default").throttle.reason  # type: ignore[union-attr]


def test_of_two_the_longer_one_counts() -> None:
    stop_everyone(Photo, "default", seconds(600), "long")
    stop_everyone(Photo, "default", seconds(5), "short")
    stopped = stops_of(Photo, using="default").throttle
    assert stopped is not None
    assert stopped.reason == "long"
    assert Switch.objects.filter(pk=stopped.pk, until__gt=DatabaseLater(seconds(500))).exists()
    since = stopped.paused_at
    stop_everyone(Photo, "default", seconds(900), "longer")
    again = stops_of(Photo, using="default").throttle
    assert again is not None
    assert (again.reason, again.paused_at) == ("longer", since)


def test_it_is_no_pause_and_a_resume_does_not_end_it() -> None:
    make(Photo, 1)
    stop_everyone(Photo, "default", seconds(60), "429")
    assert paused_by(Photo) is None
    resume(Photo, using="default")
    assert Photo.objects.claim_batch(1) == []


def test_people_are_told_why() -> None:
    make(Photo, 1)
    stop_everyone(Photo, "default", seconds(60), "the API said 429")
    why = Photo.objects.why_empty("user:17")
    assert why.throttled == "the API said 429"
    assert why.throttled_until is not None
    assert str(why).startswith("throttled until ")
    assert "the API said 429" in str(why)
    (shown,) = overview(Photo, "default").throttles
    assert (shown.reason, shown.process) == ("the API said 429", "everyone")


def test_what_a_person_holds_already_is_theirs_still() -> None:
    make(Photo, 3)
    mine = {"claimed_by": "user:17", "include_held": True}
    held = Photo.objects.claim_batch(1, **mine)
    stop_everyone(Photo, "default", seconds(60), "429")
    assert Photo.objects.claim_batch(3, **mine) == held


def test_it_travels() -> None:
    error = pickle.loads(pickle.dumps(RetryLater(5, "429", everyone=True)))
    assert (error.delay.total_seconds(), error.everyone, str(error)) == (5, True, "429")
