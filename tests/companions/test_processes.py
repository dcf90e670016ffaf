"""Real workers over companions."""

import signal
from contextlib import nullcontext

import pytest
from django.db import connection

from tests.companions.app.models import FarPage, FarTask, Line, LineTask, Page, PageCheck, PageTask
from tests.companions.conftest import make_sources
from tests.querysets.support import clock, held_open, set_raw
from tests.testapp.models import Ledger
from tests.worker.conftest import Start, Worker, start_worker, wait_until

__all__ = ["start_worker"]

pytestmark = pytest.mark.django_db(databases=["default", "other"], transaction=True)


@pytest.mark.promise(3, 7)
def test_every_kind_of_companion_is_drained_after_a_kill(start_worker: Start) -> None:
    """Two companions work on one table at once; a source may be gone, go while it is worked on, or be locked.

    Results stand on the sources once each, because the fenced completion writes them.
    """
    Page.objects.bulk_create([Page(slug=f"{i:04d}", title="a b c") for i in range(40)])
    Page.objects.create(slug="vanish", title="vanish")
    make_sources(LineTask, 20)
    make_sources(FarTask, 20)
    for model in (PageTask, PageCheck, LineTask, FarTask):
        model.objects.populate(model._meta.get_field("source").related_model.objects.all())
    Line.objects.filter(number=0).delete()
    FarPage.objects.using("other").filter(title="0").delete()

    def start(*words: str) -> Worker:
        models = "sources.LineTask sources.FarTask sources.PageTask sources.PageCheck"
        return start_worker("--in-process", "--batch-size", "15", *words, model=models)

    killed = start()
    wait_until(lambda: Ledger.objects.count() > 5)
    killed.signal(signal.SIGKILL)
    killed.wait()
    # A short lease instead would be lost on a busy machine before the worker is killed.
    for model in (PageTask, PageCheck, LineTask, FarTask):
        for row in model.objects.filter(status="processing"):
            set_raw(row, "expires_at", clock("-1 HOUR"))

    def lock() -> int:
        return Page.objects.filter(slug="0039").update(title="a b c")

    # Where there is one writer, a lock would hold up everything.
    two_writers = connection.features.has_select_for_update
    with held_open(lock) if two_writers else nullcontext():
        drain = start("--drain")
        wait_until(lambda: PageTask.objects.progress().complete >= (39 if two_writers else 0))
    assert drain.wait() == 0

    assert PageTask.objects.progress().complete == 40
    assert set(Page.objects.values_list("words", "visits")) == {(3, 1)}
    assert PageTask.objects.get(source_id="vanish").error_class.endswith("SourceGone")
    good = PageCheck.objects.filter(verdict="good").values_list("source_id", flat=True)
    assert set(Page.objects.values_list("pk", flat=True)) <= set(good)
    assert set(Line.objects.values_list("number", "length")) == {(i, i) for i in range(1, 20)}
    for model in (LineTask, FarTask):
        assert model.objects.failed().get().error_class.endswith("SourceGone")
    assert FarTask.objects.progress().complete == 19
    assert FarTask.objects.exclude(title="").count() == 19
