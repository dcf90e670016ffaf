"""``populate()``: one companion for each source, whatever links them, however often and by how many it is called."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import IntegrityError, connection, models, transaction
from django.test.utils import CaptureQueriesContext

from tests.behaviour.support import at_once, elsewhere, wait_for
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


def pages(n: int, first: int = 0) -> list[Page]:
    return Page.objects.bulk_create(
        [
            Page(slug=f"page {number:05d} 50% 'Zoë'", visits=number)
            for number in range(first, first + n)
        ]
    )


def lines(n: int) -> list[Line]:
    return Line.objects.bulk_create(
        [Line(page_id=f"p{number // 7}", number=number) for number in range(n)]
    )


def far_pages(n: int) -> list[FarPage]:
    return FarPage.objects.using("other").bulk_create([FarPage(title=str(i)) for i in range(n)])


#: Each kind of companion: the model, what makes sources, and all of them.
KINDS: list[tuple[Any, Callable[[int], Any], Callable[[], Any]]] = [
    (PageTask, pages, Page.objects.all),
    (PageCheck, pages, Page.objects.all),
    (LineTask, lines, Line.objects.all),
    (FarTask, far_pages, lambda: FarPage.objects.using("other")),
]


@pytest.fixture(params=KINDS, ids=lambda kind: kind[0].__name__)
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


def linked(model: Any) -> list[tuple[Any, ...]]:
    names = [field.attname for field in model._meta.get_field("source").local_related_fields]
    return sorted(model.objects.values_list(*names))


@pytest.mark.parametrize("chunk_size", [None, 4])
def test_each_source_gets_one_row_and_the_next_call_adds_new_ones_only(
    kind: Any, chunk_size: int | None
) -> None:
    model, make, sources = kind
    make(10)
    assert model.objects.populate(sources(), chunk_size=chunk_size) == 10
    assert model.objects.populate(sources(), chunk_size=chunk_size) == 0
    source = model._meta.get_field("source").related_model
    keys = sorted(sources().values_list(*(field.attname for field in source._meta.pk_fields)))
    assert linked(model) == keys
    first = model.objects.order_by("pk").first()
    first.source  # noqa: B018 - loads it
    model.objects.filter(pk=first.pk).delete()
    assert model.objects.populate(sources(), chunk_size=chunk_size) == 1
    assert linked(model) == keys


def test_rows_are_born_open_or_paused(kind: Any) -> None:
    model, make, sources = kind
    make(3)
    model.objects.populate(sources().filter(pk=sources().first().pk))
    assert model.objects.populate(sources(), paused=True) == 2
    progress = model.objects.progress()
    assert (progress.open, progress.paused) == (1, 2)
    (row,) = model.objects.claim_batch(10)
    assert (row.iteration, row.status) == (0, "processing")


def test_filters_are_honoured() -> None:
    pages(10)
    assert PageTask.objects.populate(Page.objects.filter(visits__gte=6)) == 4
    assert PageTask.objects.populate(Page.objects.exclude(visits=0).filter(visits__lt=3)) == 2
    assert PageTask.objects.populate(Page.objects.none()) == 0
    assert PageTask.objects.populate(Page.objects) == 4


def test_a_filter_that_shows_a_source_several_times_adds_it_once() -> None:
    made = pages(3)
    Line.objects.bulk_create(
        [Line(page=page, number=number, text="x") for page in made[:2] for number in range(3)]
    )
    assert PageTask.objects.populate(Page.objects.filter(line__text="x")) == 2
    assert PageCheck.objects.populate(Page.objects.filter(line__text="x")) == 2


def test_one_database_needs_one_insert() -> None:
    pages(20)
    with CaptureQueriesContext(connection) as queries:
        PageTask.objects.populate(Page.objects.all())
    inserts = [q["sql"] for q in queries if "INSERT" in q["sql"] and "sources_pagetask" in q["sql"]]
    assert len(inserts) == 1
    assert "SELECT" in inserts[0]


def test_chunks_that_were_committed_stay_when_it_breaks_off(kind: Any) -> None:
    """Whoever begins again adds the rest."""
    model, make, sources = kind
    make(10)
    steps = model.objects.all()._populating(sources(), chunk_size=3)
    assert next(steps).added == 3
    assert next(steps).added == 3
    steps.close()
    assert model.objects.populate(sources(), chunk_size=3) == 4


@pytest.mark.django_db(databases=["default", "other"], transaction=True)
@pytest.mark.parametrize("kind", [KINDS[0], KINDS[3]], ids=["one database", "two"])
def test_several_at_once_add_each_source_once(kind: Any) -> None:
    model, make, sources = kind
    make(60)
    model.objects.populate(sources().filter(pk__in=[row.pk for row in sources()[:5]]))

    def populating(chunk_size: int | None) -> Callable[[], int]:
        return lambda: model.objects.populate(sources(), chunk_size=chunk_size)

    assert sum(at_once(populating(None), populating(7), populating(None))) == 55
    assert len(linked(model)) == 60


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(not connection.features.has_select_for_update, reason="one writer at a time")
def test_a_row_that_comes_from_elsewhere_meanwhile_is_passed_over() -> None:
    """A view may make a companion while a populate runs; it counts its own."""
    pages(5)
    key = Page.objects.order_by("pk")[2].pk
    PageTask.objects.create(source_id=Page.objects.order_by("pk")[0].pk)
    made, go = threading.Event(), threading.Event()

    def view() -> None:
        with transaction.atomic():
            PageTask.objects.create(source_id=key)
            made.set()
            assert go.wait(20)

    other = elsewhere(view)
    assert made.wait(20)
    populate = elsewhere(PageTask.objects.populate, Page.objects.all())
    # innodb_trx is made anew only where nobody has read it for a tenth of a second.
    wait_for(lambda: populate.done() or waits_for_a_lock(), every=0.5)
    assert not populate.done(), populate.exception()
    go.set()
    other.result(20)
    assert populate.result(20) == 3
    assert PageTask.objects.count() == 5


def waits_for_a_lock() -> bool:
    statement = {
        "postgresql": "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'",
        "mysql": "SELECT count(*) FROM information_schema.innodb_trx"
        " JOIN information_schema.processlist ON id = trx_mysql_thread_id"
        " WHERE db = DATABASE() AND trx_state = 'LOCK WAIT'",
    }[connection.vendor]
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return bool(cursor.fetchone()[0])


def test_what_another_constraint_refuses_is_an_error() -> None:
    """INSERT IGNORE would leave out the second row without a word."""
    Task.objects.bulk_create([Task(), Task()])
    with pytest.raises(IntegrityError), transaction.atomic():
        TaskAudit.objects.populate(Task.objects.all())
    assert TaskAudit.objects.count() == 0


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Page.objects.all()[:3],
        lambda: Page.objects.all().union(Page.objects.all()),
        lambda: Page.objects.annotate(n=models.Count("line")),
        lambda: Task.objects.all(),
        lambda: [Page(slug="a")],
        lambda: None,
    ],
)
def test_what_is_no_filtered_queryset_of_the_source_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"^populate\(\) of sources\.PageTask takes"):
        PageTask.objects.populate(wrong())


def test_sources_on_a_database_where_no_handler_will_look_are_refused() -> None:
    with pytest.raises(ValueError, match="the queryset reads from 'default'"):
        FarTask.objects.populate(FarPage.objects.using("default"))


def test_a_queryset_that_names_no_database_reads_where_the_sources_are() -> None:
    far_pages(2)
    assert FarTask.objects.populate(FarPage.objects.all()) == 2
