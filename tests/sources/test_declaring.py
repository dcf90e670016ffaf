"""How companions are declared: what Django makes of the link, and what the checks say of a wrong one."""

from typing import Any

import pytest
from django.core.checks import run_checks
from django.db import connection, models
from django.db.migrations.autodetector import MigrationAutodetector
from django.db.migrations.state import ModelState, ProjectState
from django.db.migrations.writer import MigrationWriter
from django.test import override_settings
from django.test.utils import isolate_apps

from django_taskclaim.checks.companions import problems_of
from django_taskclaim.handlers import handler, unregister
from django_taskclaim.models import ClaimMixin, PrefixedTaskMixin, SourceKey, SourceMixin, TaskMixin
from django_taskclaim.querysets import ClaimManager, CompanionManager, CompanionQuerySet
from tests.sources.app.models import FarPage, Line, LineTask, Page

APP = "tests.sources.app"


def ids(model: Any) -> list[str]:
    found = list(problems_of(model))
    assert all(message.hint for message in found)
    return [str(message.id).removeprefix("taskclaim.") for message in found]


# Django asks SQLite itself whether it knows JSON.
@pytest.mark.django_db(databases="__all__")
def test_what_the_tests_use_is_right() -> None:
    assert [
        found for found in run_checks() if getattr(found.obj, "__module__", "").startswith(APP)
    ] == []


def test_the_copied_columns_are_plain_and_unique_together() -> None:
    copied = {field.name: field for field in LineTask._meta.concrete_fields}
    page, number = copied["source_page_id"], copied["source_number"]
    assert (type(page), page.max_length) == (models.CharField, 60)
    assert (type(number), number.null, number.editable) == (models.IntegerField, False, False)
    assert LineTask._meta.unique_together == (("source_page_id", "source_number"),)


@isolate_apps(APP)
def test_a_source_may_be_named_by_its_label_before_it_is_there() -> None:
    class LateTask(SourceMixin, TaskMixin):
        source = SourceKey("Late")

        class Meta:
            app_label = "sources"

    class Late(models.Model):
        number = models.BigAutoField(primary_key=True)

        class Meta:
            app_label = "sources"

    column = LateTask._meta.get_field("source_number")
    assert type(column) is models.BigIntegerField
    assert column.unique
    assert ids(LateTask) == []


@isolate_apps(APP)
def test_an_abstract_companion_gives_its_children_a_link_each() -> None:
    class OfLines(SourceMixin, TaskMixin):
        source = SourceKey(Line)

        class Meta:
            abstract = True
            app_label = "sources"

    class First(OfLines):
        class Meta:
            app_label = "sources"

    class Second(OfLines):
        class Meta:
            app_label = "sources"

    for model in (First, Second):
        assert ids(model) == []
        assert model._meta.get_field("source_number").model is model


def changes(before: ProjectState, after: ProjectState) -> Any:
    return MigrationAutodetector(before, after)._detect_changes()


def state_of(*described: Any) -> ProjectState:
    state = ProjectState()
    for model in described:
        state.add_model(ModelState.from_model(model))
    return state


@isolate_apps(APP)
def test_migrations_need_nothing_of_ours_for_the_link() -> None:
    """Made once, there is nothing more to migrate; and the file names Django's own class."""

    class Over(SourceMixin, ClaimMixin):
        source = SourceKey(Line)

        class Meta:
            app_label = "sources"

    made = changes(ProjectState(), state_of(Page, Line, Over))["sources"][0]
    text = MigrationWriter(made).as_string()
    assert "models.ForeignObject(" in text
    assert "SourceKey" not in text
    written: dict[str, Any] = {}
    exec(compile(text, "migration", "exec"), written)
    replayed = ProjectState()
    for operation in written["Migration"].operations:
        operation.state_forwards("sources", replayed)
    assert changes(replayed, state_of(Page, Line, Over)) == {}
    assert replayed.apps.get_model("sources.Over")._meta.get_field("source_number").column


@pytest.mark.parametrize("mixins", [(SourceMixin, PrefixedTaskMixin), (TaskMixin, SourceMixin)])
@isolate_apps(APP)
def test_mixins_go_together_in_any_order(mixins: Any) -> None:
    class Meta:
        app_label = "sources"

    link = models.OneToOneField(Page, models.CASCADE, related_name="+")
    model: Any = type("Mixed", mixins, {"__module__": APP, "Meta": Meta, "source": link})
    assert isinstance(model.objects, CompanionManager)
    assert hasattr(model.objects.all(), "populate")
    assert ids(model) == []


@isolate_apps(APP)
def test_a_manager_of_ones_own_keeps_the_verbs() -> None:
    class Loud(CompanionQuerySet):
        def loud(self) -> Any:
            return self

    class Own(SourceMixin, TaskMixin):
        source = models.OneToOneField(Page, models.CASCADE, related_name="+")
        objects = CompanionManager.from_queryset(Loud)()

        class Meta:
            app_label = "sources"

    assert ids(Own) == []
    assert hasattr(Own.objects.loud(), "populate")


@isolate_apps(APP)
def test_what_cannot_work_is_said_in_a_sentence() -> None:
    class Without(SourceMixin, TaskMixin):
        class Meta:
            app_label = "sources"

    class NotALink(SourceMixin, TaskMixin):
        source = models.IntegerField()

        class Meta:
            app_label = "sources"

    class Several(SourceMixin, TaskMixin):
        source = models.ForeignKey(Page, models.CASCADE, related_name="+")

        class Meta:
            app_label = "sources"

    class Mute(SourceMixin, TaskMixin):
        source = models.OneToOneField(Page, models.CASCADE, related_name="+")
        objects = ClaimManager()

        class Meta:
            app_label = "sources"

    assert ids(Without) == ids(NotALink) == ["E061"]
    assert ids(Several) == ["E062"]
    assert ids(Mute) == ["E061"]


class Elsewhere:
    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return "other" if model is FarPage else None

    db_for_read = db_for_write


@isolate_apps(APP)
def test_a_link_into_another_database() -> None:
    class Bound(SourceMixin, TaskMixin):
        source = models.OneToOneField(FarPage, models.CASCADE, related_name="+")

        class Meta:
            app_label = "sources"

    class Free(SourceMixin, TaskMixin):
        source = SourceKey(FarPage)
        title = models.CharField(max_length=100)

        class Meta:
            app_label = "sources"

    assert ids(Bound) == []
    with override_settings(DATABASE_ROUTERS=[Elsewhere()]):
        assert ids(Bound) == ["E063"]
        assert ids(Free) == []
        try:
            handler(Free, update_fields=["source__title"])(len)
            assert ids(Free) == ["E064"]
        finally:
            unregister(Free)


@isolate_apps(APP)
def test_a_result_that_both_tables_have_a_column_for_must_be_told_apart() -> None:
    class Both(SourceMixin, TaskMixin):
        source = models.OneToOneField(Page, models.CASCADE, related_name="+")
        words = models.IntegerField(null=True)

        class Meta:
            app_label = "sources"

    for names, found in ((["words"], ["E064"]), (["source__words"], []), (["title"], [])):
        try:
            handler(Both, update_fields=names)(len)
            assert ids(Both) == found
        finally:
            unregister(Both)


def test_missing_source_says_what_it_takes() -> None:
    with pytest.raises(ValueError, match="missing_source must be fail or complete, not 'skip'"):
        handler(LineTask, missing_source="skip")


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor != "mysql", reason="collations of columns may be compared")
@isolate_apps(APP)
def test_a_text_key_of_another_collation_is_compared_once_the_model_names_it() -> None:
    """MySQL refuses to compare columns of different collations; the link takes over the one that is named."""

    class Old(models.Model):
        code = models.CharField(primary_key=True, max_length=20, db_collation="latin1_swedish_ci")

        class Meta:
            app_label = "sources"

    class OldTask(SourceMixin, TaskMixin):
        source = models.OneToOneField(Old, models.DO_NOTHING, db_constraint=False)

        class Meta:
            app_label = "sources"

    with connection.schema_editor() as editor:
        for model in (Old, OldTask):
            editor.create_model(model)
    try:
        Old.objects.bulk_create([Old(code="a"), Old(code="b")])
        assert OldTask.objects.populate(Old.objects.filter(code="a")) == 1
        assert OldTask.objects.populate(Old.objects.all()) == 1
    finally:
        with connection.schema_editor() as editor:
            for model in (OldTask, Old):
                editor.delete_model(model)
