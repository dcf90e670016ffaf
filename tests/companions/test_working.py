"""What a companion's handler gets, and where its results go."""

import pickle
from typing import Any

import pytest
from django.db import connections, transaction
from django.db.models.signals import post_init
from django.test.utils import CaptureQueriesContext

from django_taskclaim.companions import companion_of, lacks_source, load_sources
from django_taskclaim.exceptions import ClaimColumnError, ClaimLost, SourceGone
from django_taskclaim.signals import rows_claimed
from django_taskclaim.testing import run_due
from tests.companions.app.models import FarPage, FarTask, Page, PageCheck, PageTask, Task, TaskAudit
from tests.companions.conftest import claimed_pages, make_sources
from tests.doctor.support import handling
from tests.meanwhile import connected
from tests.querysets.support import elsewhere, execute, lose, wait_for
from tests.ranges.conftest import drain

pytestmark = pytest.mark.django_db(databases=["default", "other"])


def audits(n: int) -> None:
    """Make claimable sources, each with a companion."""
    make_sources(TaskAudit, n)
    for number, task in enumerate(Task.objects.order_by("-pk")):
        TaskAudit.objects.create(source=task, only=str(number))


# What it gets


@pytest.mark.promise(3)
def test_the_source_carries_the_claim_of_its_companion() -> None:
    """Also where the source is claimable itself: its own claim is another one."""
    audits(1)
    (own,) = Task.objects.claim_batch(1)
    seen: list[Any] = []

    def look(task: Task) -> None:
        token = task.claim.token
        seen.append((type(task), task.pk, companion_of(task).claim.token == token))
        assert pickle.loads(pickle.dumps(task)).claim.token == token
        assert token != own.claim.token
        task.claim.renew(60)
        task.complete()

    with handling(TaskAudit, look):
        run_due(TaskAudit)
    assert seen == [(Task, own.pk, True)]
    assert TaskAudit.objects.get().status == "complete"
    assert own.claim.check()


def test_the_sources_of_a_batch_are_loaded_in_one_query_from_their_database() -> None:
    FarTask.objects.populate(make_sources(FarTask, 5))
    rows = FarTask.objects.claim_batch(5)
    with CaptureQueriesContext(connections["other"]) as queries:
        assert load_sources(rows) == []
        assert [row.source.title for row in rows] == list("01234")
    assert sum("SELECT" in query["sql"] for query in queries) == 1


def test_a_batch_handler_answers_by_the_keys_of_its_sources() -> None:
    """A key of a source is not taken for a companion's."""
    audits(2)
    keys = list(Task.objects.order_by("pk").values_list("pk", flat=True))
    answer = {keys[0]: None, keys[1]: ValueError("bad")}
    with handling(TaskAudit, lambda tasks: answer, batch=True, max_attempts=1):
        run_due(TaskAudit)
    states = dict(TaskAudit.objects.values_list("source", "status"))
    assert states == {keys[0]: "complete", keys[1]: "failed"}


def test_the_key_of_a_companion_is_not_taken_for_that_of_a_source() -> None:
    one, two = Task.objects.create(), Task.objects.create()
    for source, key in ((one, two.pk), (two, one.pk)):
        TaskAudit.objects.create(pk=key, source=source, only=str(key))

    def answer(tasks: list[Task]) -> list[TaskAudit]:
        return [TaskAudit.objects.get(source=one)]

    with handling(TaskAudit, answer, batch=True, max_attempts=1):
        run_due(TaskAudit)
    assert TaskAudit.objects.failed().get().source == two


# Results


@pytest.mark.promise(3)
def test_results_are_stored_on_the_source_with_the_completion_or_not_at_all() -> None:
    """A lost claim and a rollback leave the source as it was; columns that are not named stay, too."""
    kept, late, undone = claimed_pages(3)
    for row in (kept, late, undone):
        row.source.words, row.source.status = 7, "not named"
    lose(late)
    with pytest.raises(ClaimLost) as caught:
        PageTask.objects.complete([kept, late], update_fields=["words"])
    assert caught.value.lost == [late]
    with transaction.atomic():
        undone.complete(update_fields=["words"])
        transaction.set_rollback(True)
    assert undone.claim.check()
    stored = Page.objects.order_by("slug").values_list("words", "status")
    assert list(stored) == [(7, "published"), (None, "published"), (None, "published")]


def test_results_go_to_the_companions_columns_first() -> None:
    (row,) = claimed_pages(1, PageCheck)
    row.source.title, row.verdict, row.source.words = "changed", "good", 3
    PageCheck.objects.complete(row, update_fields=["verdict", "source__title", "words"])
    assert PageCheck.objects.get().verdict == "good"
    assert Page.objects.values_list("title", "words").get() == ("changed", 3)


def test_a_source_is_looked_for_where_the_completion_is_written(reads_go_elsewhere: Any) -> None:
    """A replica that lags has neither the source nor what was written to it since."""
    (row,) = claimed_pages(1)
    Page.objects.update(words=5)
    with reads_go_elsewhere() as queries:
        assert PageTask.objects.complete(row, update_fields=["words"]) == 1
    assert [query["sql"] for query in queries] == []
    assert Page.objects.using("default").get().words == 5


@pytest.mark.once
def test_a_result_that_cannot_be_written_is_refused_by_name() -> None:
    (row,) = claimed_pages(1)
    audits(1)
    (audit,) = TaskAudit.objects.claim_batch(1)
    FarTask.objects.populate(make_sources(FarTask, 1))
    (far,) = FarTask.objects.claim_batch(1)
    for claimed, name, error, sentence in (
        (row, "nothing", ValueError, r"sources\.Page has none"),
        (row, "source__slug", ValueError, "slug"),
        (audit, "source__status", ClaimColumnError, "status"),
        (far, "source__title", ValueError, "on the database 'other'"),
    ):
        with pytest.raises(error, match=sentence):
            claimed.complete(update_fields=[name])
        assert claimed.claim.check()


# Sources that vanish, or cannot be read


def test_a_source_that_is_gone_takes_its_completion_along() -> None:
    """Results without a row to go to are no results; the others of the batch can still be completed."""
    gone, there = claimed_pages(2)
    for row in (gone, there):
        row.source.words = 7
    Page.objects.filter(pk=gone.source_id).delete()
    with pytest.raises(SourceGone, match=r"sources\.PageTask") as caught:
        PageTask.objects.complete([gone, there], update_fields=["words"])
    assert caught.value.rows == [gone]
    assert PageTask.objects.progress().processing == 2
    assert PageTask.objects.complete(there, update_fields=["words"]) == 1


def test_a_source_that_is_gone_fails_its_row() -> None:
    """A claim that joins over the link takes such rows, too."""
    make_sources(PageTask, 2)
    PageTask.objects.create(source_id="gone")
    PageTask.objects.populate(Page.objects.all())
    rows = PageTask.objects.select_related("source").claim_batch(5)
    assert load_sources(rows) == []
    assert [row.source_id for row in rows if lacks_source(row)] == ["gone"]
    PageTask.objects.release(rows)
    assert run_due(PageTask).completed == 2
    failed = PageTask.objects.failed().get()
    assert (failed.source_id, failed.attempts) == ("gone", 1)
    assert failed.error_class.endswith("SourceGone")
    FarTask.objects.populate(make_sources(FarTask, 1))
    FarPage.objects.using("other").all().delete()
    run_due(FarTask)
    assert FarTask.objects.get().error_class.endswith("SourceGone")


@pytest.mark.promise(10)
def test_a_source_that_cannot_be_read_fails_its_own_row_alone() -> None:
    """As with an encrypted field whose key was changed."""
    PageTask.objects.release(claimed_pages(9))
    unreadable = sorted(Page.objects.values_list("pk", flat=True))[::4]

    def refuse(instance: Page, **facts: Any) -> None:
        if instance.slug in unreadable:
            raise LookupError("the key was changed")

    with connected(post_init, refuse, sender=Page):
        assert run_due(PageTask).completed == 6
    failed = PageTask.objects.exclude(attempts=0).values_list("source_id", "error_class")
    assert sorted(failed) == [(slug, "LookupError") for slug in unreadable]


@pytest.mark.promise(12)
def test_sources_are_read_once_more_before_a_row_is_blamed(monkeypatch: Any) -> None:
    """An outage may have ended while its error was judged."""
    rows = claimed_pages(1)

    def refuse_once(*args: Any, **options: Any) -> None:
        monkeypatch.undo()
        raise LookupError("the other database is away")

    monkeypatch.setattr(Page, "from_db", classmethod(refuse_once))
    assert load_sources(rows) == []
    assert rows[0].source.pk


@pytest.mark.promise(12)
@pytest.mark.django_db(databases=["default", "other"], transaction=True)
def test_rows_go_back_uncharged_while_their_sources_cannot_be_read() -> None:
    """The same worker does them once the other database answers again."""
    FarTask.objects.populate(make_sources(FarTask, 1))
    name = FarPage._meta.db_table
    sessions = []

    def bring_back() -> None:
        try:
            wait_for(lambda: FarTask.objects.get().iteration)
        finally:
            execute(f"ALTER TABLE {name}_away RENAME TO {name}", using="other")

    def take_away(**facts: Any) -> None:
        """Rename the table between the first claim and the look at the sources."""
        rows_claimed.disconnect(take_away)
        execute(f"ALTER TABLE {name} RENAME TO {name}_away", using="other")
        sessions.append(elsewhere(bring_back))

    rows_claimed.connect(take_away, weak=False)
    drain(FarTask)
    (session,) = sessions
    session.result(0)
    row = FarTask.objects.get()
    assert (row.status, row.attempts, row.title) == ("complete", 0, "0")
