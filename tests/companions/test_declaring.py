"""How companions are declared: what Django makes of the link, and what the checks say of a wrong one."""

from pathlib import Path
from typing import Any

import pytest
from django.db import models
from django.db.migrations.autodetector import MigrationAutodetector
from django.db.migrations.state import ModelState, ProjectState
from django.db.migrations.writer import MigrationWriter
from django.test.utils import isolate_apps

from django_taskclaim.companions import CompanionManager, CompanionQuerySet
from django_taskclaim.handlers import unregister
from django_taskclaim.models import ClaimMixin, PrefixedTaskMixin, SourceKey, SourceMixin, TaskMixin
from tests import documents
from tests.checks.support import ids_of
from tests.companions.app.models import FarPage, Line, Page
from tests.doctor.support import handling

APP = "tests.companions.app"
TEXT = (Path(__file__).parents[2] / "docs" / "companions.md").read_text(encoding="utf-8")

pytestmark = pytest.mark.once


def declare(*mixins: Any, name: str = "Declared", **body: Any) -> Any:
    """Define a companion as a project's module would."""
    meta = type("Meta", (), {"app_label": "sources"})
    bases = mixins or (SourceMixin, TaskMixin)
    return type(name, bases, {"__module__": APP, "Meta": meta, **body})


def link(to: Any = Page, field: Any = models.OneToOneField) -> Any:
    return field(to, models.CASCADE, related_name="+")


def unique_sources() -> type:
    only_one = models.UniqueConstraint(fields=["source"], name="one_row_for_each_source")
    return type("Meta", (), {"app_label": "sources", "constraints": [only_one]})


def with_handler(model: Any, *names: str) -> list[str]:
    """Return what is wrong while a handler has these results."""
    with handling(model, update_fields=names):
        return ids_of(model)


class Loud(CompanionQuerySet):
    pass


@isolate_apps(APP)
@pytest.mark.parametrize(
    ("mixins", "body", "found"),
    [
        ((SourceMixin, PrefixedTaskMixin), {"source": link}, []),
        ((TaskMixin, SourceMixin), {"source": link}, []),
        ((), {"source": link, "objects": CompanionManager.from_queryset(Loud)}, []),
        ((), {}, ["E061"]),
        ((), {"source": models.IntegerField}, ["E061"]),
        ((), {"source": lambda: link(field=models.ForeignKey)}, ["E062"]),
        ((), {"source": lambda: link(field=models.ForeignKey), "Meta": unique_sources}, []),
        ((), {"source": lambda: SourceKey(FarPage)}, []),
        ((), {"source": lambda: SourceKey(Line)}, []),
    ],
)
def test_a_link_that_cannot_work_is_a_check_error(
    mixins: Any, body: dict[str, Any], found: list[str]
) -> None:
    model = declare(*mixins, **{name: make() for name, make in body.items()})
    assert ids_of(model) == found
    assert found or hasattr(model.objects.all(), "populate")


@isolate_apps(APP)
def test_a_column_that_both_tables_have_must_be_told_apart() -> None:
    free = declare(name="Free", source=SourceKey(FarPage), title=models.CharField(max_length=100))
    both = declare(name="Both", source=link(), words=models.IntegerField(null=True))
    # The source's is on another database, which no result can reach.
    assert with_handler(free, "title") == []
    assert with_handler(both, "words") == ["W064"]
    assert with_handler(both, "source__words", "title") == []


def changes(before: ProjectState, *described: Any) -> Any:
    after = ProjectState()
    for model in described:
        after.add_model(ModelState.from_model(model))
    return MigrationAutodetector(before, after)._detect_changes()


@isolate_apps(APP)
def test_migrations_name_only_djangos_own_class_for_the_link() -> None:
    """Made once, there is nothing more to migrate."""
    over = declare(SourceMixin, ClaimMixin, name="Over", source=SourceKey(Line))
    text = MigrationWriter(changes(ProjectState(), Page, Line, over)["sources"][0]).as_string()
    assert "models.ForeignObject(" in text
    assert "SourceKey" not in text
    written: dict[str, Any] = {}
    exec(compile(text, "migration", "exec"), written)
    replayed = ProjectState()
    for operation in written["Migration"].operations:
        operation.state_forwards("sources", replayed)
    assert changes(replayed, Page, Line, over) == {}


# docs/companions.md


@isolate_apps(APP)
def test_the_example_works() -> None:
    names: dict[str, Any] = {"__name__": f"{APP}.docs", "models": models, "Page": Page}
    declared, handled = (block.values[0] for block in documents.blocks(TEXT, "python"))
    documents.run(
        declared.replace("db_constraint", 'related_name="+", db_constraint'), names, "companions.md"
    )
    # The page of the text has a text and an app of its own, that of the tests a title.
    example = handled.replace("page.text", "page.title").replace("from pages.models import", "#")
    documents.run(example, names, "companions.md")
    try:
        assert ids_of(names["PageTask"]) == []
    finally:
        unregister(names["PageTask"])
