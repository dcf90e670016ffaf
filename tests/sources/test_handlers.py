"""What a companion's handler gets, and where its results go."""

import asyncio
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import DatabaseError, connections, models, transaction
from django.db.models.signals import post_init
from django.test.utils import CaptureQueriesContext, isolate_apps

from django_taskclaim.exceptions import ClaimColumnError, ClaimLost, SourceGone
from django_taskclaim.handlers import Handler, handler_for
from django_taskclaim.models import SourceMixin, TaskMixin
from django_taskclaim.querysets.results import with_locked_source
from django_taskclaim.sources import companion_of, load_sources
from django_taskclaim.testing import run_due
from django_taskclaim.worker.claimer import Claimer
from django_taskclaim.worker.inflight import InFlight
from django_taskclaim.worker.options import WorkerOptions
from django_taskclaim.worker.outcomes import UNMENTIONED, of_answer
from django_taskclaim.worker.service import Service
from tests.behaviour.support import ROW_LOCKS, execute, held_open, lose
from tests.sources.app.models import (
    FarPage,
    FarTask,
    Line,
    LineTask,
    Page,
    PageCheck,
    PageTask,
    Task,
    TaskAudit,
)

pytestmark = pytest.mark.django_db(databases=["default", "other"])


def claimed_pages(n: int, model: Any = PageTask) -> list[Any]:
    Page.objects.bulk_create([Page(slug=f"{i:03d}", title="two words") for i in range(n)])
    model.objects.populate(Page.objects.all())
    return list(model.objects.claim_batch(n))


def registered(model: Any) -> Handler:
    found = handler_for(model)
    assert found is not None
    return found


def test_the_sources_of_a_batch_are_loaded_in_one_query() -> None:
    rows = claimed_pages(20)
    with CaptureQueriesContext(connections["default"]) as queries:
        registered(PageTask).prepare(rows)
        assert {row.source.title for row in rows} == {"two words"}
        assert rows[0].source.pagetask is rows[0]
    assert len(queries) == 1


def test_sources_on_another_database_are_loaded_from_there() -> None:
    FarPage.objects.using("other").bulk_create([FarPage(title=str(i)) for i in range(5)])
    FarTask.objects.populate(FarPage.objects.all())
    rows = FarTask.objects.claim_batch(5)
    with CaptureQueriesContext(connections["other"]) as queries:
        load_sources(rows)
    assert [row.source.title for row in rows] == [str(i) for i in range(5)]
    assert len(queries) == 1
    assert {row.source._state.db for row in rows} == {"other"}


def test_the_source_carries_the_claim_of_its_companion() -> None:
    (row,) = claimed_pages(1)
    seen: list[Any] = []
    Handler(model=PageTask, function=seen.append, gets_sources=True).call([row])
    (page,) = seen
    assert type(page) is Page
    assert page.claim.token == row.claim.token
    assert page.claim.check()
    assert companion_of(page) is row
    assert pickle.loads(pickle.dumps(page)).claim.token == row.claim.token
    page.claim.renew(60)
    page.claim.release()
    assert PageTask.objects.get().status == "open"


def test_a_source_that_is_claimed_by_itself_shows_the_companions_claim() -> None:
    """In the handler of the second piece of work, ``row.claim`` is the claim that this work runs under."""
    task = Task.objects.create()
    TaskAudit.objects.populate(Task.objects.all())
    (row,) = TaskAudit.objects.claim_batch(1)
    (own,) = Task.objects.claim_batch(1)
    seen: list[Any] = []
    Handler(model=TaskAudit, function=seen.append, gets_sources=True).call([row])
    assert (type(seen[0]), seen[0].pk) == (Task, task.pk)
    assert seen[0].claim.token == row.claim.token
    seen[0].complete()
    assert TaskAudit.objects.get().status == "complete"
    assert own.claim.check()


def test_results_on_the_source_are_written_with_the_completion() -> None:
    rows = claimed_pages(3)
    count = registered(PageTask)
    count.prepare(rows)
    for number, row in enumerate(rows):
        row.source.words, row.source.visits, row.source.status = number, 10, "not named"
    count.complete(rows)
    assert PageTask.objects.progress().complete == 3
    assert list(Page.objects.order_by("slug").values_list("words", "visits", "status")) == [
        (0, 10, "published"),
        (1, 10, "published"),
        (2, 10, "published"),
    ]


def test_two_companions_work_on_one_source_at_once() -> None:
    """Each has claims of its own, and writes its own results."""
    rows, checks = claimed_pages(3), claimed_pages_again(PageCheck)
    load_sources(rows)
    load_sources(checks)
    for row in rows:
        row.source.words = 2
    for check in checks:
        check.source.status, check.source.words = "checked", None
    PageTask.objects.complete(rows, update_fields=["words"])
    PageCheck.objects.complete(checks, update_fields=["source__status"])
    assert set(Page.objects.values_list("words", "status")) == {(2, "checked")}


def claimed_pages_again(model: Any) -> list[Any]:
    model.objects.populate(Page.objects.all())
    return list(model.objects.claim_batch(100))


def test_a_composite_link_reads_like_a_foreign_key() -> None:
    line = Line.objects.create(page_id="p", number=1, text="x")
    other = Line.objects.create(page_id="p", number=2)
    made = LineTask.objects.create(source=line)
    assert (made.source_page_id, made.source_number) == ("p", 1)
    assert LineTask.objects.populate(Line.objects.all()) == 1
    assert LineTask.objects.get(source__text="x") == made
    assert LineTask.objects.get(source=other).source == other
    assert [row.source for row in LineTask.objects.select_related("source").order_by("pk")] == [
        line,
        other,
    ]
    (row,) = LineTask.objects.filter(source__text="x").claim_batch(5)
    assert row == made


async def _nothing(page: Page) -> str:
    return page.slug


def test_coroutines_get_the_source() -> None:
    (row,) = claimed_pages(1)
    load_sources([row])
    call = Handler(model=PageTask, function=_nothing, gets_sources=True).acall([row])
    assert asyncio.run(call) == row.source_id


def test_composite_keys_store_results_too() -> None:
    Line.objects.bulk_create([Line(page_id="p", number=i, text="x" * i) for i in range(4)])
    LineTask.objects.populate(Line.objects.all())
    rows = LineTask.objects.claim_batch(4)
    for row in rows:
        row.source.length = len(row.source.text)
    LineTask.objects.complete(rows, update_fields=["length"])
    assert list(Line.objects.order_by("number").values_list("length", flat=True)) == [0, 1, 2, 3]


def test_a_lost_claim_writes_nothing_to_its_source() -> None:
    kept, late = claimed_pages(2)
    for row in (kept, late):
        row.source.words = 7
    lose(late)
    with pytest.raises(ClaimLost) as caught:
        PageTask.objects.complete([kept, late], update_fields=["words"])
    assert caught.value.lost == [late]
    assert dict(Page.objects.values_list("slug", "words")) == {
        kept.source_id: 7,
        late.source_id: None,
    }


def test_a_source_that_is_gone_takes_its_completion_along() -> None:
    """Results that have no row to go to are no results; the others of the batch can still be completed."""
    gone, there = claimed_pages(2)
    for row in (gone, there):
        row.source.words = 7
    Page.objects.filter(pk=gone.source_id).delete()
    with pytest.raises(
        SourceGone, match=r"source of sources\.PageTask .* does not exist any more"
    ) as caught:
        PageTask.objects.complete([gone, there], update_fields=["words"])
    assert caught.value.rows == [gone]
    assert PageTask.objects.progress().processing == 2
    assert PageTask.objects.complete(there, update_fields=["words"]) == 1
    assert PageTask.objects.all()._complete([gone], ["words"], may_be_gone=True) == 1


@pytest.mark.parametrize("in_a_batch", [False, True])
def test_a_source_is_looked_for_where_the_completion_is_written(
    in_a_batch: bool, reads_go_elsewhere: Any
) -> None:
    """A replica that lags has neither the source nor what was written to it since."""
    rows = claimed_pages(2)
    Page.objects.update(words=5)
    assert not Page.objects.exists()  # the replica has seen nothing yet
    with reads_go_elsewhere() as queries:
        if in_a_batch:
            assert not with_locked_source(rows, ["words"])
        assert PageTask.objects.complete(rows, update_fields=["words"]) == 2
    assert [query["sql"] for query in queries] == []
    assert set(Page.objects.using("default").values_list("words", flat=True)) == {5}


def test_names_mean_the_companions_columns_first() -> None:
    (row,) = claimed_pages(1, PageCheck)
    row.source.title, row.verdict = "changed", "good"
    row.source.words = 3
    PageCheck.objects.complete(row, update_fields=["verdict", "source__title", "words"])
    assert PageCheck.objects.get().verdict == "good"
    assert Page.objects.values_list("title", "words").get() == ("changed", 3)


def test_what_cannot_be_written_is_refused_by_name() -> None:
    (row,) = claimed_pages(1)
    with pytest.raises(
        ValueError, match=r"no column to write named nothing, and sources\.Page has none"
    ):
        row.complete(update_fields=["nothing"])
    with pytest.raises(ValueError, match="slug"):
        row.complete(update_fields=["source__slug"])
    Task.objects.create()
    TaskAudit.objects.populate(Task.objects.all())
    (audit,) = TaskAudit.objects.claim_batch(1)
    with pytest.raises(ClaimColumnError):
        audit.complete(update_fields=["source__status"])
    FarPage.objects.using("other").create(title="x")
    FarTask.objects.populate(FarPage.objects.all())
    (far,) = FarTask.objects.claim_batch(1)
    with pytest.raises(ValueError, match="on the database 'other'"):
        far.complete(update_fields=["source__title"])
    assert far.claim.check()


def test_a_batch_handler_answers_by_sources_or_their_keys() -> None:
    Line.objects.bulk_create([Line(page_id="p", number=i) for i in range(4)])
    LineTask.objects.populate(Line.objects.all())
    rows = LineTask.objects.claim_batch(4)
    seen: list[Any] = []
    Handler(model=LineTask, function=seen.extend, gets_sources=True, batch=True).call(rows)
    error = ValueError("bad")
    answer = {seen[0]: None, seen[1].pk: error, Line.objects.get(number=2): None}
    assert of_answer(rows, answer) == [None, error, None, UNMENTIONED]
    assert of_answer(rows, rows) == [None] * 4


def test_a_key_of_a_source_is_not_taken_for_a_companions() -> None:
    tasks = [Task.objects.create() for _ in range(2)]
    TaskAudit.objects.create(source=tasks[1], only="a")
    TaskAudit.objects.create(source=tasks[0], only="b")
    rows = TaskAudit.objects.claim_batch(2)
    assert of_answer(rows, [tasks[1].pk]) == [None, UNMENTIONED]


def test_joins_to_a_source_that_is_gone_do_not_stop_claims() -> None:
    claimed = PageTask.objects.select_related("source")
    Page.objects.create(slug="there")
    PageTask.objects.create(source_id="gone")
    PageTask.objects.populate(Page.objects.all())
    assert [row.source_id for row in claimed.claim_batch(5)] == ["gone", "there"]


def test_a_rolled_back_completion_leaves_the_source_as_it_was() -> None:
    (row,) = claimed_pages(1)
    row.source.words = 9
    with transaction.atomic():
        row.complete(update_fields=["words"])
        transaction.set_rollback(True)
    assert Page.objects.get().words is None
    assert row.claim.check()


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(not ROW_LOCKS, reason="one writer at a time")
def test_a_source_that_somebody_has_locked_holds_up_its_own_row_alone() -> None:
    """The writer passes it over; a source that is gone is none that has to be waited for."""
    rows = claimed_pages(4)
    count = registered(PageTask)
    count.prepare(rows)
    keys = [row.source_id for row in rows]
    Page.objects.filter(pk=keys[3]).delete()
    with held_open(lambda: Page.objects.filter(pk=keys[1]).update(title="x")), transaction.atomic():
        assert count.held_up(rows) == [rows[1]]
        assert count.complete([rows[0], rows[2]]) == 2
    with transaction.atomic():
        assert count.held_up(rows) == []


@pytest.mark.django_db(databases=["default", "other"], transaction=True)
def test_rows_go_back_uncounted_while_their_sources_cannot_be_read() -> None:
    FarPage.objects.using("other").create(title="x")
    FarTask.objects.populate(FarPage.objects.all())
    copy_title = registered(FarTask)
    options = WorkerOptions(("sources.FarTask",), "worker", "default")
    service = Service(options, [copy_title], InFlight())
    claimer = Claimer(options, [copy_title], service.inflight, service)
    with table_away(), pytest.raises(DatabaseError):
        claimer._rows(copy_title, 5)
    service._release_returned()
    row = FarTask.objects.get()
    assert (row.status, row.attempts, row.iteration) == ("open", 0, 1)
    (row,) = claimer._rows(copy_title, 5)
    assert row.source.title == "x"


@pytest.fixture
def unreadable() -> Iterator[list[str]]:
    """The slugs of pages that nobody can read, as with a field whose key was changed."""
    slugs: list[str] = []

    def receive(instance: Page, **facts: Any) -> None:
        if instance.slug in slugs:
            raise LookupError("the key was changed")

    post_init.connect(receive, sender=Page)
    yield slugs
    post_init.disconnect(receive, sender=Page)


def test_a_source_that_cannot_be_read_fails_its_own_row_alone(unreadable: list[str]) -> None:
    rows = claimed_pages(9)
    unreadable += ["002", "007"]
    usable = registered(PageTask).prepare(rows)
    assert [row.source_id for row in usable] == [f"00{n}" for n in (0, 1, 3, 4, 5, 6, 8)]
    assert {row.source.title for row in usable} == {"two words"}
    failed = PageTask.objects.filter(attempts=1).values_list("source_id", "error_class")
    assert sorted(failed) == [("002", "LookupError"), ("007", "LookupError")]
    assert PageTask.objects.complete(usable) == 7


def test_a_handler_is_called_with_the_other_sources(unreadable: list[str]) -> None:
    PageTask.objects.release(claimed_pages(9))
    unreadable += ["000", "008"]
    assert run_due(PageTask).completed == 7
    tried = PageTask.objects.filter(attempts__gt=0).values_list("source_id", flat=True)
    assert set(tried) == {"000", "008"}


@contextmanager
def table_away() -> Iterator[None]:
    name = FarPage._meta.db_table
    execute(f"ALTER TABLE {name} RENAME TO {name}_away", using="other")
    try:
        yield
    finally:
        execute(f"ALTER TABLE {name}_away RENAME TO {name}", using="other")


@isolate_apps("tests.sources.app")
def test_process_of_the_companion_keeps_its_own_self() -> None:
    class Own(SourceMixin, TaskMixin):
        source = models.OneToOneField(Page, models.CASCADE)

        class Meta:
            app_label = "sources"

        def process(self) -> "Own":
            return self

    row = Own()
    assert registered(Own).call([row]) is row
