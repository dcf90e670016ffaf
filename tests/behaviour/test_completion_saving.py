"""``completion="save"``: each row is saved by its own ``save()``, in the transaction that completes it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection
from django.db.models.signals import post_save, pre_save

from django_taskclaim import handler
from django_taskclaim.handlers import unregister
from django_taskclaim.testing import run_due
from tests.behaviour.completing import claimed, refused
from tests.behaviour.models import EveryField
from tests.behaviour.support import facts, fresh, lose, stored
from tests.factories import make
from tests.sources.app.models import Page, PageTask
from tests.testapp.models import Effect, Photo

pytestmark = pytest.mark.django_db

Rule = Callable[..., None]
Heard = list[tuple[Any, ...]]


@pytest.fixture
def heard() -> Iterator[Heard]:
    """Return what receivers of the model's signals were told and saw."""
    found: Heard = []

    def listen(sender: Any, instance: Any, signal: Any, update_fields: Any, **kwargs: Any) -> None:
        if sender is Photo:
            name = "pre_save" if signal is pre_save else "post_save"
            told = None if update_fields is None else set(update_fields)
            found.append((name, instance.pk, instance.status, told))

    for signal in (pre_save, post_save):
        signal.connect(listen)
    yield found
    for signal in (pre_save, post_save):
        signal.disconnect(listen)


def test_signals_tell_of_each_row(rule: Rule, heard: Heard) -> None:
    """Receivers see a row that is complete, and that the database has so, in the same transaction."""
    rule(Photo, completion="save")
    rows = claimed(Photo, 3)
    heard.clear()
    for row in rows:
        row.width = 640
    assert Photo.objects.complete(rows) == 3
    names = ("pre_save", "post_save")
    assert heard == [(name, row.pk, "complete", None) for row in rows for name in names]
    assert set(Photo.objects.values_list("status", "width")) == {("complete", 640)}
    assert facts(rows[0]).completed_at == rows[0].completed_at


def test_update_fields_bound_what_is_saved(rule: Rule, heard: Heard) -> None:
    rule(Photo, completion="save")
    (row,) = claimed(Photo, 1)
    heard.clear()
    row.width, row.height = 640, 480
    row.claim.complete(update_fields=["width"])
    assert heard == [(name, row.pk, "complete", {"width"}) for name in ("pre_save", "post_save")]
    assert (fresh(row).width, fresh(row).height, facts(row).status) == (640, None, "complete")


def test_it_is_shown_when_it_was_completed(rule: Rule, monkeypatch: Any) -> None:
    """A receiver that reads every column, as a history does, costs no query for each row."""
    seen: list[Any] = []

    def save(self: Any, *args: Any, **kwargs: Any) -> None:
        seen.append((self.get_deferred_fields(), self.completed_at))
        usual(self, *args, **kwargs)

    usual = Photo.save
    monkeypatch.setattr(Photo, "save", save)
    rule(Photo, completion="save")
    rows = claimed(Photo, 2)
    seen.clear()
    Photo.objects.complete(rows)
    assert seen == [(set(), facts(row).completed_at) for row in rows]


def test_columns_that_fill_themselves(rule: Rule) -> None:
    rule(EveryField, completion="save")
    (row,) = claimed(EveryField, 1)
    before = fresh(row).changed
    row.claim.complete()
    assert fresh(row).changed > before


def test_every_shape(shape: Any, rule: Rule) -> None:
    rule(shape, completion="save")
    rows = claimed(shape, 3)
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


def test_a_lost_claim_saves_nothing(rule: Rule, heard: Heard) -> None:
    rule(Photo, completion="save")
    rows = claimed(Photo, 2)
    lose(rows[0])
    heard.clear()
    refused(rows, [rows[0]])
    assert {key for _, key, *_ in heard} == {rows[1].pk}


def test_a_save_that_raises_undoes_it_all(rule: Rule, monkeypatch: Any) -> None:
    """What receivers wrote, too; the instance is as it was, for its save() may be called again."""

    def save(self: Any, *args: Any, **kwargs: Any) -> None:
        self.counter += 1
        usual(self, *args, **kwargs)
        Effect.objects.create(key=str(self.pk))
        raise LookupError("refused")

    usual = Photo.save
    rule(Photo, completion="save")
    (row,) = claimed(Photo, 1)
    before = stored(row)
    monkeypatch.setattr(Photo, "save", save)
    with pytest.raises(LookupError, match="refused"):
        row.claim.complete()
    assert stored(row) == before
    assert (row.status, row.counter, Effect.objects.exists()) == ("processing", 0, False)
    assert row.claim.check()
    monkeypatch.undo()
    row.claim.complete()
    assert facts(row).status == "complete"


async def do_async(photo: Any) -> None:
    photo.width = 640


def do(photo: Any) -> None:
    photo.width = 640


def do_together(photos: list[Any]) -> None:
    for photo in photos:
        do(photo)


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (do, {}),
        (do_async, {}),
        (do_together, {"batch": True}),
        (do, {"atomic": True, "timeout": 5}),
    ],
    ids=["plain", "async", "batch", "atomic"],
)
def test_in_a_worker_only_the_row_that_raises_fails(
    function: Any, options: Any, monkeypatch: Any, settings: Any
) -> None:
    """And a column that the handler set is no lost one, for save() writes it."""

    def save(self: Any, *args: Any, **kwargs: Any) -> None:
        self.counter += 1
        usual(self, *args, **kwargs)
        Effect.objects.create(key=str(self.pk))
        if self.note == "bad":
            raise LookupError("refused")

    settings.TASKCLAIM = {"FAIL_UNSAVED": True}
    usual = Photo.save
    rows = [*make(Photo, 9), *make(Photo, 1, note="bad")]
    monkeypatch.setattr(Photo, "save", save)
    handler(Photo, completion="save", max_attempts=1, **options)(function)
    try:
        ran = run_due(Photo)
    finally:
        unregister(Photo)
    assert (ran.completed, ran.failed) == (9, 1)
    assert set(Photo.objects.filter(status="complete").values_list("width", "counter")) == {
        (640, 1)
    }
    bad = Photo.objects.get(pk=rows[-1].pk)
    assert (bad.status, bad.width, bad.last_error) == ("failed", None, "refused")
    assert Effect.objects.count() == 9


def test_of_a_companion_its_own_row_is_saved(rule: Rule) -> None:
    """Columns of the source are written as ever."""
    Page.objects.create(slug="a", title="two words")
    PageTask.objects.populate(Page.objects.all())
    rule(PageTask, completion="save")
    (row,) = PageTask.objects.claim_batch(1)
    row.source.words = 2
    row.claim.complete(update_fields=["words"])
    assert Page.objects.get().words == 2
    assert PageTask.objects.get().status == "complete"


@pytest.mark.django_db(transaction=True)
def test_it_is_one_transaction(rule: Rule) -> None:
    """Hooks of the receivers run once that has committed."""
    ran: list[Any] = []

    def hook(sender: Any, instance: Any, **kwargs: Any) -> None:
        assert connection.in_atomic_block
        connection.on_commit(lambda: ran.append(facts(instance).status))

    rule(Photo, completion="save")
    rows = claimed(Photo, 2)
    post_save.connect(hook, sender=Photo)
    try:
        Photo.objects.complete(rows)
    finally:
        post_save.disconnect(hook, sender=Photo)
    assert ran == ["complete"] * 2
