"""Companions whose source is gone are found, and removed unless somebody works on them."""

import io
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import models

from django_taskclaim.doctor.movement import why_nothing_moves
from django_taskclaim.sources import load_sources, or_what_works_on_it
from tests.sources.app.models import FarPage, FarTask, Line, LineTask, Page, PageTask, Task
from tests.testapp.models import IntRange

pytestmark = pytest.mark.django_db(databases=["default", "other"])


@pytest.fixture(params=[PageTask, LineTask, FarTask], ids=lambda model: model.__name__)
def companion(request: pytest.FixtureRequest) -> Any:
    """A companion with 20 rows, of which 8 have no source."""
    model = request.param
    if model is PageTask:
        Page.objects.bulk_create([Page(slug=f"{i:02d}") for i in range(20)])
    elif model is LineTask:
        Line.objects.bulk_create([Line(page_id=f"{i % 3}", number=i) for i in range(20)])
    else:
        FarPage.objects.using("other").bulk_create([FarPage() for _ in range(20)])
    sources = model._meta.get_field("source").related_model.objects
    model.objects.populate(sources.all())
    for row in sources.using("other" if model is FarTask else "default").order_by("pk")[:8]:
        row.delete()
    return model


def test_orphans_are_a_queryset(companion: Any) -> None:
    assert companion.objects.orphans().count() == 8
    assert (
        companion.objects.filter(pk=companion.objects.orphans().first().pk).orphans().count() == 1
    )
    assert companion.objects.open().orphans().pause_rows() == 8


def test_a_companion_whose_source_is_hidden_is_no_orphan(
    companion: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``Meta.base_manager_name`` of the source, on one database and across two."""
    hiding = Hiding()
    hiding.model = companion._meta.get_field("source").related_model
    monkeypatch.setitem(vars(hiding.model._meta), "base_manager", hiding)
    assert companion.objects.remove_orphans() == 8
    assert companion.objects.count() == 12
    assert load_sources(companion.objects.claim_batch(12)) == []


class Hiding(models.Manager[Any]):
    def get_queryset(self) -> Any:
        return super().get_queryset().none()


def test_a_source_is_loaded_as_its_base_manager_loads_rows(
    companion: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As over a foreign key: django-polymorphic's rows, for one, come as what they are."""
    source = companion._meta.get_field("source").related_model
    own = models.Manager.from_queryset(Marking)()
    own.model = source
    monkeypatch.setitem(vars(source._meta), "base_manager", own)
    companion.objects.remove_orphans()
    rows = companion.objects.claim_batch(12)
    load_sources(rows)
    assert {row.source.note for row in rows} == {"marked"}


class Marking(models.QuerySet[Any]):
    def __iter__(self) -> Any:
        for row in super().__iter__():
            if isinstance(row, models.Model):
                row.note = "marked"
            yield row


def test_no_orphan_that_is_processing_is_removed(companion: Any) -> None:
    (running,) = companion.objects.orphans().claim_batch(1)
    assert companion.objects.remove_orphans() == 7
    assert companion.objects.count() == 13
    assert running.claim.check()
    running.complete()
    assert companion.objects.remove_orphans() == 1
    assert companion.objects.remove_orphans() == 0


def test_the_doctor_tells_of_them() -> None:
    Page.objects.create(slug="there")
    PageTask.objects.populate(Page.objects.all())
    assert "without a source" not in told(PageTask)
    Page.objects.all().delete()
    assert "1 row without a source. manage.py claimpopulate sources.PageTask" in told(PageTask)


def told(model: Any) -> str:
    return "\n".join(f"{one.message} {one.advice}" for one in why_nothing_moves(model, "default"))


def run(*words: str) -> str:
    out = io.StringIO()
    call_command("claimpopulate", *words, stdout=out)
    return out.getvalue()


def test_the_command_populates_tells_of_orphans_and_removes_them() -> None:
    Page.objects.bulk_create([Page(slug=f"{i:02d}", visits=i) for i in range(25)])
    assert run("sources.PageTask", "--filter", "visits__gte=20", "--paused") == (
        "Added 5 rows to sources.PageTask.\n"
    )
    assert run("sources.PageTask", "--chunk", "7") == "Added 20 rows to sources.PageTask.\n"
    assert PageTask.objects.progress().paused == 5
    Page.objects.filter(visits__lt=2).delete()
    assert "2 rows without a source: remove them with --remove-orphans." in run("sources.PageTask")
    assert "Removed 2 rows without a source." in run("sources.PageTask", "--remove-orphans")
    assert PageTask.objects.count() == 23


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["testapp.Photo"], "The model testapp.Photo has no source"),
        (["sources.PageTask", "--filter", "vists=1"], "did you mean visits?"),
        (["sources.PageTask", "--chunk", "0"], "'0' is no whole number"),
    ],
)
def test_wrong_usage_is_one_sentence(words: list[str], sentence: str) -> None:
    with pytest.raises(CommandError, match=r"^[^\n]*$") as caught:
        run(*words)
    assert sentence in str(caught.value)
    assert caught.value.returncode == 2


def test_a_missing_table_is_told_with_where_to_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PageTask._meta, "db_table", "not_made_yet")
    with pytest.raises(CommandError) as caught:
        run("sources.PageTask")
    assert "has no table not_made_yet for sources.PageTask" in str(caught.value)
    assert "migrations do not make this table (managed = False)" in str(caught.value)
    assert caught.value.returncode == 2


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("sources.Page", "cannot be claimed: Page has no claim columns"),
        ("sources.Task", "has no handler"),
        ("testapp.IntSource", "cannot be claimed: IntSource has no claim columns"),
    ],
)
def test_a_worker_asked_for_a_source_is_pointed_to_its_companions_and_ranges(
    source: str, reason: str
) -> None:
    with pytest.raises(CommandError) as caught:
        call_command("claimworker", source)
    assert reason in str(caught.value)
    found = {
        "sources.Page": "or work on its companion sources.PageCheck or sources.PageTask.",
        "sources.Task": "or work on its companion sources.TaskAudit.",
        "testapp.IntSource": "or work on its ranges testapp.IntRange.",
    }
    assert str(caught.value).endswith(found[source])
    assert caught.value.returncode == 2


def test_companions_and_ranges_of_one_source_are_both_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(IntRange, "source", "sources.Task")
    told = ", or work on its companion sources.TaskAudit or its ranges testapp.IntRange"
    assert or_what_works_on_it(Task) == told
    monkeypatch.setattr(IntRange, "source", "no.Model")
    assert or_what_works_on_it(Task) == ", or work on its companion sources.TaskAudit"
    assert or_what_works_on_it(FarTask) == ""


def test_a_stopped_command_says_what_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C between two chunks; the next call adds the rest."""
    from django_taskclaim.management.commands.claimpopulate import Report

    Page.objects.bulk_create([Page(slug=f"{i:02d}") for i in range(10)])

    def interrupt(self: Report, seen: int, added: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Report, "advance", interrupt)
        with pytest.raises(CommandError, match=r"Stopped\. 4 rows added") as caught:
            run("sources.PageTask", "--chunk", "4")
    assert caught.value.returncode == 130
    assert run("sources.PageTask", "--chunk", "4") == "Added 6 rows to sources.PageTask.\n"


def test_a_terminal_sees_a_bar(capsys: Any) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    Page.objects.bulk_create([Page(slug=f"{i:02d}") for i in range(10)])
    out = Terminal()
    call_command("claimpopulate", "sources.PageTask", chunk=4, stdout=out)
    assert "\r[##############################] 100.0%  10 of 10 seen, 10 added" in out.getvalue()
