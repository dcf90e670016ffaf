"""Real workers over companions."""

import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.sources.app.models import FarPage, FarTask, Line, LineTask, Page, PageTask
from tests.testapp.models import Ledger
from tests.worker.conftest import Worker, start_worker, wait_until

__all__ = ["start_worker"]

Start = Callable[..., Worker]

pytestmark = [
    pytest.mark.processes,
    pytest.mark.django_db(databases=["default", "other"], transaction=True),
]


def test_every_kind_of_companion_is_drained_after_a_kill(start_worker: Start) -> None:
    """Composite keys, another database, sources that are gone, or go while they are worked on.

    Results stand on the sources, each once, for they are written by the fenced completion.
    """
    pages = [Page(slug=f"{i:04d}", title="a b c") for i in range(40)]
    Page.objects.bulk_create([*pages, Page(slug="vanish", title="vanish")])
    Line.objects.bulk_create([Line(page_id="p", number=i, text="x" * i) for i in range(30)])
    Line.objects.create(page_id="gone", number=1)
    FarPage.objects.using("other").bulk_create([FarPage(title=str(i)) for i in range(30)])
    for model in (LineTask, FarTask, PageTask):
        source: Any = model._meta.get_field("source").related_model
        model.objects.populate(source.objects.all())
    Line.objects.filter(page_id="gone").delete()
    FarPage.objects.using("other").filter(title="0").delete()

    words = ("--in-process", "--batch-size", "15")
    # Only of the one that is killed: on a busy machine a living one is cut off from leases as short as this.
    first = start_worker("--lease", "1", *words, model="sources.PageTask")
    wait_until(lambda: Ledger.objects.count() > 5)
    first.signal(signal.SIGKILL)
    first.wait()
    models = "sources.LineTask sources.FarTask sources.PageTask"
    assert start_worker("--drain", *words, model=models).wait() == 0

    assert PageTask.objects.progress().complete == 40
    assert set(Page.objects.values_list("words", "visits")) == {(3, 1)}
    assert PageTask.objects.get(source_id="vanish").error_class.endswith("SourceGone")

    assert set(Line.objects.values_list("number", "length")) == {(i, i) for i in range(30)}
    failed = LineTask.objects.failed().get()
    assert (failed.error_class, failed.attempts) == ("django_taskclaim.exceptions.SourceGone", 1)
    assert "does not exist any more" in failed.last_error
    assert LineTask.objects.progress().complete == 30

    assert FarTask.objects.progress().complete == 30
    assert FarTask.objects.exclude(title="").count() == 29
