"""The public API as users call it. Nothing here runs: mypy (strict) and pyright must both accept it."""

from datetime import datetime, timedelta
from typing import Any, assert_type

from django.db.models import F

from django_taskclaim import handler, named_lease, take
from django_taskclaim.companions import companion_of
from django_taskclaim.completion import Archive, Clear
from django_taskclaim.contention import retry_on_contention
from django_taskclaim.exceptions import Permanent, RetryLater
from django_taskclaim.holders import holder_of, name_of
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.states import Token
from django_taskclaim.testing import Ran, arun_due, run_due
from tests.companions.app.models import LineTask, Page, PageTask
from tests.testapp.models import Effect, HiddenRows, Photo, PhotoRange


def claiming_returns_rows_of_the_model() -> None:
    assert_type(Photo.objects.claim_batch(10), list[Photo])
    lease = timedelta(minutes=20)
    held = Photo.objects.claim_batch(5, claimed_by="17", lease=lease, include_held=True)
    assert_type(held, list[Photo])


def verbs_over_rows(rows: list[Photo]) -> None:
    assert_type(Photo.objects.complete(rows, update_fields=["width", "height"]), int)
    assert_type(Photo.objects.fail(rows, ValueError("no such picture")), int)
    assert_type(Photo.objects.release(rows, delay=timedelta(minutes=5)), int)
    assert_type(Photo.objects.renew(rows, lease=60), int)


def verbs_over_a_queryset() -> None:
    assert_type(Photo.objects.release_expired(limit=100), int)
    assert_type(Photo.objects.reset(complete=True, running=True), int)
    assert_type(Photo.objects.filter(country="NZ").take_back(), int)
    assert_type(Photo.objects.failed().reset(limit=10, progress=print), int)
    assert_type(Photo.objects.prune(older_than=timedelta(days=30)), int)
    assert_type(Photo.objects.pause_rows(), int)
    assert_type(Photo.objects.resume_rows(), int)
    assert_type(Photo.objects.run_at(datetime(2031, 1, 1)), int)
    assert_type(Photo.objects.fail_rows("no", running=True), int)


def people_hold_rows(photo: Photo, rows: list[Photo]) -> None:
    assert_type(Photo.objects.holdings("user:17"), list[Photo])
    assert_type(Photo.objects.hand_over(photo, to="user:18"), int)
    assert_type(Photo.objects.filter(pk=1).take_over(by="user:18", reason="17 is ill"), int)
    why = Photo.objects.why_empty("user:17")
    assert_type(why.held, int)
    assert_type(why.next_free, datetime | None)
    assert_type(str(why), str)
    photo.claim.hand_over("user:18", lease=timedelta(hours=1))
    assert_type(name_of(holder_of(None)), str)


def filters_chain() -> None:
    chain = Photo.objects.open().due().filter(country="NZ")
    assert_type(chain.claim_batch(1), list[Photo])
    assert_type(Photo.objects.held_by("user:17").count(), int)
    assert_type(Photo.objects.expired().first(), Photo | None)
    assert_type(Photo.objects.failed().exists(), bool)
    Photo.objects.progress()


def a_token_travels_in_a_form(photo: Photo, posted: str) -> None:
    token = photo.claim.token
    assert_type(token, Token)
    assert_type(str(token), str)
    assert_type(Photo.objects.with_token(photo.pk, token), Photo)
    assert_type(Photo.objects.with_token(photo.pk, posted), Photo)


def ranges_of_keys(ranges: PhotoRange) -> None:
    assert_type(PhotoRange.objects.plan(chunk_size=1_000_000), int)
    assert_type(PhotoRange.objects.claim_batch(1), list[PhotoRange])
    for rows in ranges.rows(500):
        rows.update(note="")
    assert_type(ranges.advance(ranges.upper_key, rows=3), None)


def verbs_on_a_row(photo: Photo) -> None:
    photo.claim.complete(update_fields=["width"])
    photo.claim.fail("no such picture", retry=False)
    photo.claim.release(delay=5)
    assert_type(photo.claim.renew(lease=60), bool)
    assert_type(photo.claim.lost, bool)
    photo.complete(update_fields=["width"])


async def async_twins(rows: list[Photo]) -> None:
    assert_type(await Photo.objects.aclaim_batch(10), list[Photo])
    assert_type(await Photo.objects.acomplete(rows), int)
    assert_type(await Photo.objects.aholdings("user:18"), list[Photo])


def a_queryset_of_the_users_own(queryset: ClaimQuerySet[Photo]) -> None:
    assert_type(queryset.claim_batch(10), list[Photo])
    HiddenRows.everything.claim_batch(10)


@handler(Photo, update_fields=["width", "height"])
def measure(photo: Photo) -> None:
    photo.width, photo.height = 640, 480


@handler(PageTask, update_fields=["words"])
def count_words(page: Page) -> None:
    page.words = len(page.title.split())
    assert_type(companion_of(page).claim.token, Any)


def companions() -> None:
    assert_type(PageTask.objects.populate(Page.objects.all(), chunk_size=100), int)
    assert_type(PageTask.objects.claim_batch(5), list[PageTask])
    assert_type(LineTask.objects.progress().open, int)


@handler(
    Photo,
    batch_size=50,
    lease=60,
    timeout=900,
    max_attempts=5,
    backoff=lambda failures: timedelta(seconds=failures),
    order_by=["country", F("url").desc()],
    limit_per={"url": 3},
    rate="100/m",
    max_running=20,
    hours="22:00-06:00",
    serial_by="country",
    failed_blocks=False,
    wake_up=True,
)
def measure_with_options(photo: Photo) -> None:
    if not photo.url:
        raise Permanent("a photo without a URL")
    if photo.width is None:
        raise RetryLater(timedelta(minutes=5), "429", everyone=True)


@handler(Photo, completion=Archive(Photo))
def move(photo: Photo) -> None: ...


@handler(Photo, completion=Clear(every=timedelta(hours=1)))
def look_again(photo: Photo) -> None: ...


@retry_on_contention()
def add(one: int, other: int) -> int:
    return one + other


def leases_on_a_name() -> None:
    with named_lease("nightly-report", lease=60) as held:
        assert_type(held, named_lease)
        assert_type(held.lost, bool)
        assert_type(held.check(), bool)
        assert_type(held.token, Token)
    with named_lease("x", lease=timedelta(minutes=1), wait=30, using="other"):
        pass


async def leases_in_async_code() -> None:
    async with named_lease("nightly-report", wait=timedelta(seconds=30)) as held:
        assert_type(held, named_lease)
        assert_type(await held.acheck(), bool)


def rows_without_claim_columns() -> None:
    with take(Effect.objects.order_by("id"), 10, idle=30) as effects:
        assert_type(effects, list[Effect])


async def runs_in_tests() -> None:
    assert_type(run_due(Photo), Ran)
    assert_type(await arun_due(Photo, limit=5, using="default"), Ran)
    assert_type(run_due(Photo).completed, int)
