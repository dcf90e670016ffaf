"""What the doctor finds on a real database, and that what it advises mends it."""

import contextlib
import io
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, connections, models

from django_taskclaim import policy
from django_taskclaim.completion import Delete
from django_taskclaim.dialects import dialect_for
from django_taskclaim.doctor import Finding, Kind, examine
from django_taskclaim.doctor.plans import (
    claim_index,
    judged_plans,
    missing_indexes,
    missing_key_indexes,
)
from django_taskclaim.doctor.rehearsal import claim_statements, fenced_statements, reaper_statements
from django_taskclaim.handlers import handler, unregister
from django_taskclaim.models import NamedLease, Switch, WorkerProcess
from django_taskclaim.querysets.claiming import checked_request
from django_taskclaim.querysets.lower_bound import LowerBound
from django_taskclaim.querysets.scope import Desk
from django_taskclaim.signals import rows_claimed
from tests.behaviour.support import clock, set_raw
from tests.factories import SHAPES, make
from tests.testapp.models import (
    Child,
    ClaimOnly,
    CompositeKey,
    PercentNames,
    Photo,
    PhotoProxy,
    ReservedWords,
)

pytestmark = pytest.mark.django_db(databases="__all__")

#: For tests that change tables, which no savepoint takes back everywhere.
changes_tables = pytest.mark.django_db(transaction=True, databases="__all__")

#: So many rows that every optimiser should prefer an index.
MANY = 25_000


def problems(findings: Iterator[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.kind is Kind.PROBLEM]


def told(model: type[models.Model], alias: str = "default") -> str:
    """Return all that the doctor says of the model, with its advice."""
    return "\n".join(f"{finding.message} → {finding.advice}" for finding in examine(model, alias))


def doctor(*labels: str) -> tuple[int, str]:
    """Return exit code and output of ``claimdoctor``."""
    out = io.StringIO()
    try:
        call_command("claimdoctor", *labels, stdout=out)
    except CommandError as error:
        return error.returncode, f"{out.getvalue()}{error}"
    return 0, out.getvalue()


def execute(*statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@contextlib.contextmanager
def without_index(model: type[models.Model]) -> Iterator[None]:
    """Drop the claim index, and bring it back unless the test has."""
    desk = Desk.of(model, "default")
    index = claim_index(desk)
    owner: Any = desk.columns.owner
    quoted = connection.ops.quote_name(index.name).replace("%%", "%")
    table = desk.table.name.replace("%%", "%")
    # By hand: Django's own remove_index stumbles over a % in the table's name.
    execute(
        f"DROP INDEX {quoted} ON {table}"
        if connection.vendor == "mysql"
        else f"DROP INDEX {quoted}"
    )
    try:
        yield
    finally:
        for finding in missing_indexes(owner, "default"):
            execute(*finding.details)


@contextlib.contextmanager
def handling(model: Any, **options: Any) -> Iterator[None]:
    """Register a handler for a while."""

    def work(row: Any) -> None:
        """Nothing."""

    handler(model, **options)(work)
    try:
        yield
    finally:
        unregister(model)


def many(model: Any, **values: Any) -> None:
    """Fill the table with so many rows that plans count."""
    model.objects.bulk_create([model(**values) for _ in range(MANY)], batch_size=2000)
    if connection.vendor == "sqlite":
        return  # nothing there refreshes statistics by itself, so it plans without
    desk = Desk.of(model, "default")
    with connection.cursor() as cursor:
        cursor.execute(desk.dialect.refresh_statistics(desk.table))
        if cursor.description:
            cursor.fetchall()


# Indexes and plans


@pytest.mark.skipif(
    connection.vendor != "postgresql", reason="it alone assumes rows where none was counted"
)
def test_a_table_that_was_found_empty_says_nothing_by_its_plans() -> None:
    """After a look at nothing the server takes any index; that is no fault."""
    for model in SHAPES:
        desk = Desk.of(model, "default")
        with connection.cursor() as cursor:
            cursor.execute(desk.dialect.refresh_statistics(desk.table))
    assert [one for model in SHAPES for one in problems(examine(model, "default"))] == []


@pytest.mark.parametrize("model", SHAPES)
@pytest.mark.parametrize("rows", [0, 1, 60])
def test_every_shape_is_in_order(model: type[models.Model], rows: int) -> None:
    make(model, rows)
    assert problems(examine(model, "default")) == []


@changes_tables
@pytest.mark.parametrize(
    "model", [Photo, PhotoProxy, ClaimOnly, Child, CompositeKey, ReservedWords, PercentNames]
)
def test_a_missing_index_is_reported_with_the_statement_that_mends_it(
    model: type[models.Model],
) -> None:
    """The command exits with 1 and prints the statement; once that is executed it exits with 0."""
    make(model, 30)
    label = model._meta.label
    with without_index(model):
        code, text = doctor(label)
        (finding,) = missing_indexes(model, "default")
        (statement,) = finding.details
        assert code == 1
        assert statement.startswith("CREATE INDEX ")
        assert statement in text
        execute(statement)
        code, text = doctor(label)
        assert code == 0, text
        assert "CREATE INDEX" not in text


def test_a_process_exits_with_1_and_then_with_0(process_env: dict[str, str]) -> None:
    make(Photo, 30)
    command = [sys.executable, "-m", "django", "claimdoctor", "testapp.Photo"]
    with without_index(Photo):
        run = subprocess.run(command, env=process_env, capture_output=True, text=True)
        assert (run.returncode, run.stderr.count("\n")) == (1, 1)
        assert "problem" in run.stderr
        statement = next(
            line for line in run.stdout.splitlines() if line.strip().startswith("CREATE")
        )
        execute(statement.strip())
        run = subprocess.run(command, env=process_env, capture_output=True, text=True)
        assert (run.returncode, run.stderr) == (0, ""), run.stdout


@changes_tables
def test_an_index_of_any_name_and_with_more_columns_will_do() -> None:
    index = claim_index(Desk.of(ClaimOnly, "default"))
    wider = models.Index(
        fields=[*index.fields, "note" if connection.vendor != "mysql" else "counter"], name="wider"
    )
    with without_index(ClaimOnly):
        with connection.schema_editor() as editor:
            editor.add_index(ClaimOnly, wider)
        try:
            assert list(missing_indexes(ClaimOnly, "default")) == []
            assert problems(judged_plans(ClaimOnly, "default")) == []
        finally:
            with connection.schema_editor() as editor:
                editor.remove_index(ClaimOnly, wider)


@changes_tables
def test_with_many_rows_the_plans_tell_a_right_index_from_none() -> None:
    """Here the judgement is EXPLAIN's alone, on every database."""
    many(Photo)
    assert problems(judged_plans(Photo, "default")) == []
    with without_index(Photo):
        found = problems(judged_plans(Photo, "default"))
        assert [finding.message.split()[1] for finding in found][:1] == ["claim"]
        assert "sorts rows" in found[0].message
        assert "reads the whole table" in found[0].message
        assert found[0].details


@changes_tables
@pytest.mark.parametrize(
    "options",
    [{"queryset": Photo.objects.order_by("url")}, {"order_by": ["url"]}],
    ids=["queryset", "order_by"],
)
def test_an_order_of_the_handlers_own_needs_an_index_of_its_own(options: Any) -> None:
    many(Photo)
    with handling(Photo, **options):
        (found,) = problems(judged_plans(Photo, "default"))
        assert "sorts rows" in found.message
        assert "an order of its own" in found.advice
        # What mends it comes first: no statistics make an index serve an order that it does not have.
        create, refresh = map(found.advice.index, ("Create the index", "refresh the statistics"))
        assert create < refresh
        execute(found.details[-1])
        name = re.findall(r"\w+", found.details[-1])[2]
        table = f" ON {Photo._meta.db_table}" if connection.vendor == "mysql" else ""
        try:
            assert problems(judged_plans(Photo, "default")) == []
        finally:
            execute(f"DROP INDEX {name}{table}")
    assert problems(judged_plans(Photo, "default")) == []


@pytest.mark.skipif(connection.vendor != "sqlite", reason="it alone plans without statistics")
@pytest.mark.parametrize("model", SHAPES)
def test_what_is_written_is_found_by_its_key(model: type[models.Model]) -> None:
    """Not by its state: with a million open rows each claim would read all of them."""
    make(model, 30)
    desk = Desk.of(model, "default")
    for statement in [*claim_statements(model, "default"), *fenced_statements(model, "default")]:
        if statement.text.startswith("UPDATE"):
            (first, *_) = desk.dialect.explain(statement, desk.table, may_sort=True).lines
            assert "PRIMARY KEY" in first or "sqlite_autoindex" in first, first


@changes_tables
@pytest.mark.parametrize("rows", [0, 60])
def test_a_limit_per_key_gets_an_index_recommended(rows: int) -> None:
    """Not a problem, for it matters where many rows of one key stand in front."""
    make(Photo, rows)
    with handling(Photo, limit_per={"country": 2}):
        assert problems(examine(Photo, "default")) == []
        (found,) = missing_key_indexes(Photo, "default")
        assert "status and country" in found.message
        execute(*found.details)
        name = re.findall(r"\w+", found.details[0])[2]
        table = f" ON {Photo._meta.db_table}" if connection.vendor == "mysql" else ""
        try:
            assert list(missing_key_indexes(Photo, "default")) == []
            assert problems(examine(Photo, "default")) == []
        finally:
            execute(f"DROP INDEX {name}{table}")


@changes_tables
def test_a_series_gets_the_index_of_its_order_recommended() -> None:
    make(Photo, 60)
    with handling(Photo, serial_by="country", max_running=5, rate="5/s"):
        assert problems(examine(Photo, "default")) == []
        (found,) = missing_key_indexes(Photo, "default")
        assert "whose turn it is not" in found.message
        assert "not_before" not in found.details[0]
        execute(*found.details)
        name = re.findall(r"\w+", found.details[0])[2]
        table = f" ON {Photo._meta.db_table}" if connection.vendor == "mysql" else ""
        try:
            assert list(missing_key_indexes(Photo, "default")) == []
            assert problems(examine(Photo, "default")) == []
        finally:
            execute(f"DROP INDEX {name}{table}")


@changes_tables
def test_a_limit_per_key_is_no_trouble_where_transactions_do_not_see_new_commits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Workers claim in transactions of their own, at READ COMMITTED; only the doctor's is another."""
    make(Photo, 3)
    monkeypatch.setattr(
        type(dialect_for(connection)), "sees_new_commits", lambda self: False, raising=False
    )
    with handling(Photo, limit_per={"country": 2}):
        assert problems(examine(Photo, "default")) == []


@changes_tables
def test_a_sort_that_locks_counts_at_any_size(settings: Any) -> None:
    """UPDATE … ORDER BY … LIMIT locks all that it sorts, so the next worker finds nothing free."""
    if "update_limit" not in dialect_for(connection).strategies:
        pytest.skip("the database has no UPDATE … ORDER BY … LIMIT")
    settings.TASKCLAIM = {"CLAIM_STRATEGY": "update_limit"}
    make(Photo, 60)
    with without_index(Photo):
        (found, *_) = problems(judged_plans(Photo, "default"))
        assert "The claim sorts rows" in found.message


@changes_tables
def test_an_index_that_no_statement_can_use_is_missing() -> None:
    desk = Desk.of(Photo, "default")
    name, table = claim_index(desk).name, desk.table.name
    if connection.vendor == "postgresql":
        hide = f"UPDATE pg_index SET indisvalid = %s WHERE indexrelid = '{name}'::regclass"
        off, on = hide.replace("%s", "false"), hide.replace("%s", "true")
    elif connection.vendor == "mysql":
        is_mariadb = connection.mysql_is_mariadb  # type: ignore[attr-defined]
        words = ("IGNORED", "NOT IGNORED") if is_mariadb else ("INVISIBLE", "VISIBLE")
        off, on = (f"ALTER TABLE {table} ALTER INDEX {name} {word}" for word in words)
    else:
        pytest.skip("the database has no unusable indexes")
    execute(off)
    try:
        assert len(list(missing_indexes(Photo, "default"))) == 1
    finally:
        execute(on)
    assert list(missing_indexes(Photo, "default")) == []


# The rehearsal


class Sent:
    """Notes every statement on one table that is really sent."""

    def __init__(self, table: str) -> None:
        self.table = table
        self.texts: list[str] = []

    def __call__(self, execute: Callable[..., Any], text: str, *rest: Any) -> Any:
        if self.table in text and text.startswith(("SELECT", "UPDATE", "WITH")):
            self.texts.append(text)
        return execute(text, *rest)


@pytest.mark.parametrize("strategy", ["auto", "update_limit", "compare_and_swap"])
def test_what_is_explained_is_what_is_sent(strategy: str, settings: Any) -> None:
    if strategy not in dialect_for(connection).strategies:
        pytest.skip(f"the database cannot claim by {strategy}")
    settings.TASKCLAIM = {"CLAIM_STRATEGY": strategy}
    first, *_, waited = make(Photo, 160)
    set_raw(waited, "not_before", clock("-1 HOUR"))
    heard = {without_limit(statement.text) for statement in claim_statements(Photo, "default")}
    desk = Desk.of(Photo, "default")
    sent = Sent(desk.table.name)
    with connection.execute_wrapper(sent):
        assert len(Photo.objects.claim_batch(50)) == 50
        make(Photo, 1, priority=5)
        request = checked_request(Photo, 50, None, None, False, True)
        bounded = replace(request, bound=LowerBound.behind(first, desk))
        assert len(Photo.objects.all()._claim(bounded)) == 50
    really = {without_limit(text) for text in sent.texts}
    assert heard
    assert heard <= really
    assert {text for text in really if text.startswith("UPDATE")} <= heard


def without_limit(text: str) -> str:
    """A claim that comes back short looks further, for fewer rows, and that alone is different."""
    return re.sub(r"\((%s|\d+)(, (%s|\d+))*\)", "(keys)", re.sub(r" LIMIT \d+", "", text))


@pytest.mark.parametrize("model", [Photo, CompositeKey, Child])
def test_examining_changes_nothing(model: Any) -> None:
    """Not even what is expired or due: no statement heard is sent, no signal is, and no row is locked."""
    make(model, 30)
    model.objects.claim_batch(5, lease=0.001)
    model.objects.claim_batch(5)
    before = list(model._base_manager.order_by("pk").values())
    claimed: list[Any] = []
    rows_claimed.connect(receiver := lambda **facts: claimed.append(facts), weak=False)
    try:
        list(examine(model, "default"))
    finally:
        rows_claimed.disconnect(receiver)
    assert list(model._base_manager.order_by("pk").values()) == before
    assert claimed == []
    assert len(model.objects.claim_batch(50)) == 20


def test_every_kind_of_statement_is_heard() -> None:
    make(Photo, 5)
    for statements in (claim_statements, fenced_statements):
        assert any("UPDATE" in statement.text for statement in statements(Photo, "default"))
    assert any("expires_at" in statement.text for statement in reaper_statements(Photo, "default"))


def test_a_policy_that_deletes_is_examined_and_deletes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make(Photo, 5)
    monkeypatch.setitem(policy._policies, Photo, policy.Policy(completion=Delete()))
    assert any("DELETE" in heard.text for heard in fenced_statements(Photo, "default"))
    list(examine(Photo, "default"))
    assert Photo.objects.count() == 5


# Tables


@changes_tables
@pytest.mark.parametrize("ours", [Switch, WorkerProcess, NamedLease])
def test_a_missing_table_of_ours(ours: type[models.Model]) -> None:
    name = ours._meta.db_table
    with renamed(ours, name, f"{name}_away"):
        (finding,) = examine(Photo, "default")
    assert finding.kind is Kind.PROBLEM
    assert name in finding.message
    assert finding.advice == "manage.py migrate taskclaim --database default"


@changes_tables
def test_a_model_that_is_not_migrated() -> None:
    with renamed(ClaimOnly, "testapp_claimonly", "testapp_elsewhere"):
        (finding,) = examine(ClaimOnly, "default")
    assert "no table testapp_claimonly" in finding.message
    assert "migrate testapp" in finding.advice


@contextlib.contextmanager
def renamed(model: type[models.Model], old: str, new: str) -> Iterator[None]:
    with connection.schema_editor() as editor:
        editor.alter_db_table(model, old, new)
    try:
        yield
    finally:
        with connection.schema_editor() as editor:
            editor.alter_db_table(model, new, old)


@changes_tables
def test_a_column_that_is_not_migrated() -> None:
    table = Desk.of(ClaimOnly, "default").table.name
    execute(f"ALTER TABLE {table} RENAME COLUMN claimed_at TO taken_at")
    try:
        (finding,) = examine(ClaimOnly, "default")
    finally:
        execute(f"ALTER TABLE {table} RENAME COLUMN taken_at TO claimed_at")
    assert "lacks the column claimed_at" in finding.message
    assert finding.advice.startswith("manage.py makemigrations testapp (or manage.py claimadopt")
    assert finding.advice.endswith(", then manage.py migrate testapp --database default")


@changes_tables
def test_a_database_that_does_not_answer_is_a_finding() -> None:
    wrong = connections["other"].settings_dict
    name = wrong["NAME"]
    connections["other"].close()
    wrong["NAME"] = (
        "/nowhere/at/all.sqlite3" if connection.vendor == "sqlite" else "no_such_database"
    )
    try:
        (finding,) = examine(Photo, "other")
    finally:
        connections["other"].close()
        wrong["NAME"] = name
    assert finding.kind is Kind.PROBLEM
    assert "'other' refused" in finding.message
