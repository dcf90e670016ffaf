"""The system checks: quiet on a right project, one message with a hint for each thing that is wrong."""

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest
from django.apps import apps
from django.core.checks import CheckMessage, run_checks
from django.db import connection, models
from django.test.utils import isolate_apps

from django_taskclaim import checks
from django_taskclaim.checks.databases import check_configuration, check_routers, check_servers
from django_taskclaim.checks.handlers import problems_of as handler_problems
from django_taskclaim.checks.models import problems_of
from django_taskclaim.checks.settings import check_settings
from django_taskclaim.dialects import dialect_for
from django_taskclaim.handlers import handler, handler_for, unregister
from django_taskclaim.models import (
    ClaimMixin,
    CompletedAtMixin,
    PrefixedTaskMixin,
    PriorityMixin,
    Switch,
    TaskMixin,
)
from django_taskclaim.querysets import ClaimManager, ClaimQuerySet
from tests.testapp.models import (
    Child,
    ChildOwnsClaim,
    ClaimOnly,
    CompositeKey,
    Ledger,
    Photo,
    UuidKey,
)

#: The label of the throwaway models, which must not meet the real ones.
APP = "testapp"


def ids(messages: Iterable[CheckMessage]) -> list[str]:
    found = list(messages)
    # Every message has a hint to act on.
    assert all(message.hint for message in found)
    return [str(message.id).removeprefix("taskclaim.") for message in found]


def heard(messages: Iterable[CheckMessage]) -> list[CheckMessage]:
    """Return what the settings do not silence."""
    return [message for message in messages if not message.is_silenced()]


@pytest.mark.django_db(databases="__all__")
def test_a_right_project_is_quiet() -> None:
    found = run_checks(databases=["default", "other"])
    assert [m for m in heard(found) if str(m.id).startswith("taskclaim")] == []


def test_every_id_is_documented() -> None:
    source = ""
    for folder in ("admin", "checks", "dialects", "control"):
        path = os.path.join(apps.get_app_config("taskclaim").path, folder)
        for name in os.listdir(path):
            if name.endswith(".py"):
                with open(os.path.join(path, name), encoding="utf-8") as file:
                    source += file.read()
    used = set(re.findall(r'"([EW]\d{3})"', source))
    documented = set(re.findall(r"^([EW]\d{3})", checks.__doc__ or "", re.MULTILINE))
    documented |= {f"E10{number}" for number in range(1, 7)}
    documented.discard("E101–E106")
    assert used == documented


# Settings


@pytest.mark.parametrize(
    "wrong",
    [
        {"LEASE": -1},
        {"LEASE": "soon"},
        {"LAESE": 60},
        {"BATCH_SIZE": 0},
        {"CLAIM_STRATEGY": "fast"},
        {"RETRIES": True},
    ],
)
def test_a_wrong_setting_is_shown_with_its_value(wrong: dict[str, Any], settings: Any) -> None:
    settings.TASKCLAIM = wrong
    (message,) = check_settings()
    assert ids([message]) == ["E001"]
    ((key, value),) = wrong.items()
    assert repr(key) in message.msg
    assert repr(value) in message.msg or key == "LAESE"


def test_settings_that_are_no_dictionary(settings: Any) -> None:
    settings.TASKCLAIM = ["LEASE"]
    assert ids(check_settings()) == ["E001"]


# Models


@isolate_apps("tests.testapp")
def test_right_models_are_quiet() -> None:
    class Own(ClaimQuerySet):
        pass

    class Plain(TaskMixin):
        class Meta:
            app_label = APP

    class WithManager(ClaimMixin):
        attempts = models.CharField(max_length=5)  # ClaimMixin leaves the name free
        objects = ClaimManager.from_queryset(Own)()

        class Meta:
            app_label = APP

    class Prefixed(PrefixedTaskMixin):
        status = models.CharField(max_length=5)
        priority = models.CharField(max_length=5)

        class Meta:
            app_label = APP

    class Below(Plain):
        complete = models.BooleanField(default=False)

        class Meta:
            app_label = APP

    class Proxy(Plain):
        class Meta:
            app_label = APP
            proxy = True

    assert [ids(problems_of(model)) for model in (Plain, WithManager, Prefixed, Below, Proxy)] == [
        []
    ] * 5


@isolate_apps("tests.testapp")
def test_a_manager_without_the_verbs() -> None:
    class PublishedQuerySet(models.QuerySet[Any]):
        pass

    class Foreign(TaskMixin):
        rows = PublishedQuerySet.as_manager()

        class Meta:
            app_label = APP

    class BareManager(models.Manager[Any]):
        pass

    class Bare(TaskMixin):
        objects = BareManager()

        class Meta:
            app_label = APP

    (foreign,), (bare,) = problems_of(Foreign), problems_of(Bare)
    assert ids([foreign, bare]) == ["E002", "E002"]
    assert "rows = ClaimManager.from_queryset(ClaimPublishedQuerySet)()" in str(foreign.hint)
    assert "class ClaimBareManager(ClaimManager, BareManager):" in str(bare.hint)


@isolate_apps("tests.testapp")
def test_a_field_of_the_users_in_the_place_of_ours() -> None:
    """The class can be made all the same, so that the check is what tells."""

    class OwnStatus(ClaimMixin):
        status = models.CharField(max_length=20, default="draft")

        class Meta:
            app_label = APP

    class OwnPriority(TaskMixin):
        priority = models.CharField(max_length=20, default="whenever")

        class Meta:
            app_label = APP

    class Method(TaskMixin):
        def last_error(self) -> str:
            return "none"

        class Meta:
            app_label = APP

    class Removed(TaskMixin):
        attempts = None

        class Meta:
            app_label = APP

    for model, name in (
        (OwnStatus, "status"),
        (OwnPriority, "priority"),
        (Method, "last_error"),
        (Removed, "attempts"),
    ):
        (message,) = problems_of(model)
        assert ids([message]) == ["E003"]
        assert f".{name} is not the claim column" in message.msg
        assert "PrefixedTaskMixin" in str(message.hint)


@isolate_apps("tests.testapp")
def test_an_attribute_in_the_place_of_row_claim() -> None:
    class Insurance(TaskMixin):
        claim = models.CharField(max_length=20)

        class Meta:
            app_label = APP

    class Method(TaskMixin):
        def claim(self) -> None:
            """Something else."""

        class Meta:
            app_label = APP

    assert ids(problems_of(Insurance)) == ["E004"]
    assert ids(problems_of(Method)) == ["E004"]


@isolate_apps("tests.testapp")
def test_claim_columns_on_two_tables() -> None:
    """One statement writes them, so a child can add none to those of its parent."""

    class Plain(ClaimMixin):
        class Meta:
            app_label = APP

    class Timed(Plain, CompletedAtMixin):
        class Meta:
            app_label = APP

    class Renamed(models.Model):
        class Meta:
            app_label = APP

    class Whole(Renamed, PrefixedTaskMixin):
        class Meta:
            app_label = APP

    class Ranked(PriorityMixin):
        class Meta:
            app_label = APP

    class Aside(Ranked, PrefixedTaskMixin):
        class Meta:
            app_label = APP

    class Above(Ranked, ClaimMixin):
        class Meta:
            app_label = APP

    (far,) = problems_of(Timed)
    assert ids([far]) == ["E011"]
    assert "keeps completed_at on another table than status" in far.msg
    assert far.hint == "Let Plain have them: the mixins that bring them belong where status is."
    (near,) = problems_of(Above)
    assert "keeps priority on another table than status" in near.msg
    assert near.hint == "Rename priority of Ranked."
    assert not [*problems_of(Plain), *problems_of(Whole), *problems_of(Aside)]


@isolate_apps("tests.testapp")
def test_a_queue_below_a_queue() -> None:
    """Django saves the parent's columns with the child's, and the fence of the one does not know the other."""

    class First(TaskMixin):
        class Meta:
            app_label = APP

    class Second(PrefixedTaskMixin, First):
        class Meta:
            app_label = APP

    assert not list(problems_of(First))
    (found,) = problems_of(Second)
    assert ids([found]) == ["E011"]
    assert found.msg.startswith("testapp.Second is a queue, and so is its parent testapp.First")


@isolate_apps("tests.testapp")
def test_claim_fields_that_name_what_there_is_not() -> None:
    class Wrong(TaskMixin):
        claim_fields = {"attempts": "tries", "holder": "claimed_by"}

        class Meta:
            app_label = APP

    class NotOurs(TaskMixin):
        title = models.CharField(max_length=5)
        claim_fields = {"expires_at": "title"}

        class Meta:
            app_label = APP

    role, field = problems_of(Wrong)
    assert ids([role, field]) == ["E005", "E005"]
    assert "names holder, and there is no such role" in role.msg
    assert "attempts is kept in 'tries', which is not a field" in field.msg
    (foreign,) = problems_of(NotOurs)
    assert "expires_at is kept in 'title', which is not a claim column" in foreign.msg


# Handlers


ONE_WRITER = connection.vendor == "sqlite"


def work(row: Any) -> None:
    """Nothing."""


@pytest.mark.parametrize(
    ("options", "expected", "word"),
    [
        ({"update_fields": ["width", "author_id"]}, ["E009"], "names author_id"),
        ({"update_fields": ["status"]}, ["E009"], "written by the verbs alone"),
        ({"update_fields": ["id"]}, ["E009"], "names id"),
        ({"queryset": Photo.objects.all()[:5]}, ["E010"], "a slice"),
        ({"queryset": Photo.objects.values("url")}, ["E010"], "values()"),
        ({"queryset": ClaimOnly.objects.all()}, ["E010"], "one of testapp.ClaimOnly"),
        ({"queryset": models.QuerySet(Photo)}, ["E010"], "without claim_batch()"),
        ({"lease": 1}, ["W003"], "one slow renewal"),
        ({"lease": timedelta(days=3)}, ["W003"], "stay stuck for 3 d"),
        ({"timeout": 0.5}, ["W004"], "0.5 s"),
        ({"atomic": True}, ["W009"] * ONE_WRITER, "has one writer"),
        ({"atomic": True, "timeout": None}, ["W009"] * ONE_WRITER, "timeout=15)"),
        ({"atomic": True, "timeout": 15}, [], ""),
        (
            {"update_fields": ["width"], "lease": 2, "queryset": Photo.objects.filter(width=None)},
            [],
            "",
        ),
        ({"timeout": None}, [], ""),
    ],
)
def test_a_handlers_options(options: dict[str, Any], expected: list[str], word: str) -> None:
    handler(Photo, **options)(work)
    try:
        found = handler_for(Photo)
        assert found is not None
        messages = list(handler_problems(found))
        assert ids(messages) == expected
        assert all(word in f"{message.msg} {message.hint}" for message in messages)
        # The registered check finds the same.
        assert [m.msg for m in heard(run_checks(tags=[checks.TAG]))] == [m.msg for m in messages]
    finally:
        unregister(Photo)


@pytest.mark.parametrize(
    ("model", "options", "expected"),
    [
        (Photo, {}, []),
        (UuidKey, {}, ["W010"]),
        (UuidKey, {"order_by": ["counter"]}, []),
        (ChildOwnsClaim, {"serial_by": "extra"}, []),
        (CompositeKey, {}, []),
    ],
)
def test_a_series_needs_an_order(model: Any, options: dict[str, Any], expected: list[str]) -> None:
    handler(model, **{"serial_by": "counter"} | options)(work)
    try:
        found = handler_for(model)
        assert found is not None
        assert ids(list(handler_problems(found))) == expected
    finally:
        unregister(model)


# Databases


class Keeps:
    """A router that keeps our tables, and not the models, away from one database."""

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return False if (db, app_label) == ("other", "taskclaim") else None


class KeepsAllAway:
    """A router under which one database has nothing to do with claims."""

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return False if db == "other" else None


class WritesElsewhere(KeepsAllAway):
    """A router of a legacy database that is never migrated, but written to."""

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return "other" if model is Photo else None


@pytest.mark.parametrize(
    ("router", "expected"), [(Keeps, ["E006"]), (KeepsAllAway, []), (WritesElsewhere, ["E006"])]
)
def test_a_router_that_keeps_our_tables_away(
    router: type[Any], expected: list[str], settings: Any
) -> None:
    settings.DATABASE_ROUTERS = [router()]
    messages = check_routers()
    assert ids(messages) == expected
    assert all("'other'" in message.msg for message in messages)


def test_a_strategy_that_the_database_does_not_have(settings: Any) -> None:
    for strategy in ("auto", "update_limit", "compare_and_swap"):
        settings.TASKCLAIM = {"CLAIM_STRATEGY": strategy}
        there = strategy in dialect_for(connection).strategies
        assert ids(check_configuration()) == ([] if there else ["E008"])


def test_options_of_the_database_that_break_a_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {
        "sqlite": ({"transaction_mode": "DEFERRED"}, "W001"),
        "mysql": ({"client_flag": 0}, "E007"),
        "postgresql": ({"isolation_level": 3}, "W002"),
    }
    options, expected = wrong[connection.vendor]
    monkeypatch.setitem(
        connection.settings_dict, "OPTIONS", {**connection.settings_dict["OPTIONS"], **options}
    )
    assert ids(check_configuration()) == [expected]


def test_no_server_is_asked_unless_a_database_is_named() -> None:
    """This test has no access to the database, so asking would fail it."""
    assert heard(run_checks(tags=[checks.TAG])) == []
    assert check_servers(databases=None) == []


@pytest.mark.django_db(transaction=True)
def test_a_server_is_asked_when_its_database_is_named() -> None:
    if connection.vendor != "mysql":
        pytest.skip("the database keeps every table in one engine")
    table = connection.ops.quote_name(ClaimOnly._meta.db_table)
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} ENGINE = MyISAM")
        try:
            assert ids(check_servers(databases=["default"])) == ["E102"]
        finally:
            cursor.execute(f"ALTER TABLE {table} ENGINE = InnoDB")
    assert check_servers(databases=["default"]) == []


def test_django_shows_our_checks(process_env_without_database: dict[str, str]) -> None:
    """``manage.py check`` of a real project ends with our id and its hint."""
    run = subprocess.run(
        [sys.executable, "-c", PROJECT],
        env=process_env_without_database,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 1
    assert "(taskclaim.E001) TASKCLAIM['LEASE'] is -1" in run.stderr
    assert 'HINT: TASKCLAIM = {"LEASE": 60.0}' in run.stderr


PROJECT = """
import sys
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django_taskclaim"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    TASKCLAIM={"LEASE": -1},
)
from django.core.management import execute_from_command_line
execute_from_command_line(["manage.py", "check"])
"""


@pytest.fixture
def process_env_without_database() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}


def test_models_that_are_not_claimable_are_left_alone() -> None:
    assert not hasattr(Ledger, "claim_fields")
    assert not hasattr(Switch, "claim_fields")
    assert ids(problems_of(Child)) == []
