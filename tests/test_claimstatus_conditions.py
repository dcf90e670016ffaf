"""``claimstatus`` for monitors and scripts: ``--fail-if``, ``--require-complete``, ``--format json``."""

import io
import json
import re
from argparse import ArgumentTypeError
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from django_taskclaim.control.models import WorkerOrder
from django_taskclaim.control.orders import change_settings
from django_taskclaim.dialects import DatabaseLater, DatabaseNow
from django_taskclaim.management.conditions import AGES, FIGURES, conditions
from django_taskclaim.management.figures import figures_of, oldest_due
from django_taskclaim.models import Switch, Throttle, WorkerProcess
from django_taskclaim.overview import overview
from django_taskclaim.switch import pause
from tests.behaviour.models import Notice
from tests.behaviour.support import clock, execute, set_raw, table_of
from tests.behaviour.test_operators import in_each_state
from tests.behaviour.test_pruning import completed
from tests.factories import make
from tests.test_commands import lapsed, no_savepoint, refused, run, table_away
from tests.testapp.models import ClaimOnly, Job, Photo, UuidKey

pytestmark = pytest.mark.django_db(databases="__all__")


def worker(*labels: str, seen: int = 1, **facts: Any) -> WorkerProcess:
    """List a worker process that reported so many seconds ago."""
    number = WorkerProcess.objects.count()
    ago = DatabaseLater(timedelta(seconds=-seen))
    return WorkerProcess.objects.create(
        name=f"worker@host:{number}",
        labels=", ".join(labels),
        host="host",
        pid=number,
        version="1",
        started_at=ago,
        seen_at=ago,
        **facts,
    )


def judged(*words: str) -> tuple[int, str]:
    """Return the exit code of ``claimstatus -v 0``, and its reason."""
    out, errors = io.StringIO(), io.StringIO()
    try:
        call_command("claimstatus", *words, verbosity=0, stdout=out, stderr=errors)
    except CommandError as error:
        assert out.getvalue() == ""
        return error.returncode, str(error)
    assert out.getvalue() == ""
    return 0, errors.getvalue()


# Situations. Each is made before the condition is judged, and says what to expect of it.


def nothing() -> None:
    """An empty table, no worker."""


def one_failed() -> None:
    make(Photo)
    Photo.objects.fail_rows("no")


def three_due() -> None:
    make(Photo, 3)


def put_off_and_due_for_an_hour() -> None:
    make(Photo, 2)
    (row,) = Photo.objects.claim_batch(1)
    Photo.objects.release(row, delay=1)
    set_raw(row, "not_before", clock("-1 HOUR"))


def put_off_until_later() -> None:
    make(Photo, 1)
    Photo.objects.release(Photo.objects.claim_batch(1), delay=3600)


def workers_that_live_and_one_that_fell_silent() -> None:
    worker("testapp.Photo", "testapp.Job")
    worker("testapp.Photo")
    worker("testapp.Photo", seen=300)
    worker("testapp.Job")


def a_lease_that_ended_an_hour_ago() -> None:
    (row,) = lapsed(Photo)
    set_raw(row, "expires_at", clock("-1 HOUR"))


def paused_for_three_hours() -> None:
    pause(Photo, by="ann")
    execute(f"UPDATE {table_of(Switch)} SET paused_at = {clock('-3 HOUR')}")


def one_in_each_state() -> None:
    in_each_state(Photo)


def throttled() -> None:
    for process in ("v", "w"):
        Throttle.objects.create(
            process=process,
            label="testapp.photo",
            source="lag",
            reason="slow",
            since_at=DatabaseNow(),
            until=DatabaseLater(timedelta(hours=1)),
        )


Situation = tuple[Callable[[], None], str, str]

SITUATIONS: list[Situation] = [
    (nothing, "failed>0,due>0,expired>0,oldest_due>0,paused_for>0,throttles>0", ""),
    (nothing, "workers<1", "workers is 0 (workers<1)"),
    (nothing, "total=0", "total is 0 (total=0)"),
    (one_failed, "failed>0", "failed is 1 (failed>0)"),
    (one_failed, "failed>1, unfinished>0", ""),
    (three_due, "due>=3", "due is 3 (due>=3)"),
    (three_due, "due>3,due<3,due!=3", ""),
    (three_due, "open = 3 , waiting<1", "open is 3 (open=3), waiting is 0 (waiting<1)"),
    (put_off_and_due_for_an_hour, "oldest_due>15m", "oldest_due is 1 h (oldest_due>15m)"),
    (put_off_and_due_for_an_hour, "oldest_due>2h", ""),
    (put_off_until_later, "oldest_due>0", ""),
    (put_off_until_later, "waiting>0", "waiting is 1 (waiting>0)"),
    (workers_that_live_and_one_that_fell_silent, "workers<2", ""),
    (workers_that_live_and_one_that_fell_silent, "workers<3", "workers is 2 (workers<3)"),
    (a_lease_that_ended_an_hour_ago, "expired>0", "expired is 1 (expired>0)"),
    (
        a_lease_that_ended_an_hour_ago,
        "oldest_expired>30m",
        "oldest_expired is 1 h (oldest_expired>30m)",
    ),
    (paused_for_three_hours, "paused_for>1h", "paused_for is 3 h (paused_for>1h)"),
    (paused_for_three_hours, "paused>0,paused_for>4h", ""),
    (
        one_in_each_state,
        "processing>0,complete>0,failed>0,paused>0,open>0",
        "processing is 1 (processing>0), complete is 1 (complete>0), failed is 1 (failed>0),"
        " paused is 1 (paused>0), open is 1 (open>0)",
    ),
    (one_in_each_state, "total!=5", ""),
    (throttled, "throttles>1", "throttles is 2 (throttles>1)"),
]


@pytest.mark.parametrize(
    ("situation", "asked", "reason"),
    SITUATIONS,
    ids=[f"{situation.__name__}: {asked}" for situation, asked, _ in SITUATIONS],
)
def test_a_situation_is_judged(situation: Any, asked: str, reason: str) -> None:
    situation()
    code, said = judged("testapp.Photo", "--fail-if", asked)
    if reason:
        assert (code, said) == (1, f"testapp.Photo: {reason}")
    else:
        assert code == 0


def test_several_models_share_one_line_and_what_is_right_is_not_named() -> None:
    one_failed()
    make(UuidKey)
    UuidKey.objects.fail_rows("no")
    words = ("testapp.Photo", "testapp.Job", "testapp.UuidKey", "--fail-if", "failed>0")
    assert judged(*words) == (
        1,
        "testapp.Photo: failed is 1 (failed>0); testapp.UuidKey: failed is 1 (failed>0)",
    )


def test_conditions_may_be_given_in_several_options() -> None:
    one_failed()
    words = ("testapp.Photo", "--fail-if", "due>5", "--fail-if", "failed>0")
    assert judged(*words) == (1, "testapp.Photo: failed is 1 (failed>0)")


def test_only_models_with_a_handler_want_workers_unless_they_are_named() -> None:
    code, said = judged("--fail-if", "workers<1")
    assert code == 1
    assert "testapp.Job: workers is 0 (workers<1)" in said
    assert "testapp.ClaimOnly" not in said
    assert judged("testapp.ClaimOnly", "--fail-if", "workers<1")[0] == 1


def test_the_status_is_shown_all_the_same() -> None:
    one_failed()
    out = io.StringIO()
    with pytest.raises(CommandError, match="failed is 1"):
        call_command("claimstatus", "testapp.Photo", fail_if=conditions("failed>0"), stdout=out)
    assert out.getvalue().startswith("MODEL ")


def test_where_nobody_knows_since_when_rows_are_due_that_is_said() -> None:
    make(Photo)
    assert judged("testapp.Photo", "--fail-if", "oldest_due>15m") == (
        0,
        "testapp.Photo: oldest_due knows of rows that were put off only; a column with auto_now_add would tell of"
        " the others.\n",
    )
    assert judged("testapp.Photo", "--fail-if", "due>5") == (0, "")
    make(Notice)
    assert judged("testapp.Notice", "--fail-if", "oldest_due>15m") == (0, "")


@pytest.mark.parametrize("use_tz", [True, False])
def test_a_column_of_the_models_own_tells_since_when_rows_are_due(
    use_tz: bool, settings: Any
) -> None:
    settings.USE_TZ = use_tz
    first, second, third = make(Notice, 3)
    Notice.objects.complete(Notice.objects.filter(pk=first.pk).claim_batch(1))
    Notice.objects.release(Notice.objects.filter(pk=second.pk).claim_batch(1), delay=3600)
    for row, hours in ((first, 9), (second, 8), (third, 2)):
        column = Notice._meta.get_field("made_at")
        earlier = row.made_at - timedelta(hours=hours)
        bound = column.get_db_prep_value(earlier, connection)
        execute(f"UPDATE {table_of(Notice)} SET made_at = %s WHERE id = {row.pk}", [bound])
    age = oldest_due(overview(Notice, "default"))
    assert age is not None
    assert timedelta(hours=2) <= age < timedelta(hours=2, minutes=2)


# Words


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "'' is no condition; write failed>0, or several as in oldest_due>15m,workers<1"),
        ("failed>0,", "'' is no condition;"),
        ("failed", "'failed' is no condition;"),
        ("0<failed", "there is no figure '0';"),
        ("failed>-1", "'failed>-1' is no condition;"),
        ("faild>0", "there is no figure 'faild'; did you mean failed?"),
        ("speed>0", "there is no figure 'speed'; there are open, due, waiting,"),
        ("failed=>0", "'=>' compares nothing; there are >, >=, <, <=, =, !="),
        ("failed>1.5", "failed is a number of something, and '1.5' is no whole number"),
        ("failed>15m", "failed is a number of something, and '15m' is no whole number"),
        ("oldest_due>soon", "'soon' is no time longer than zero;"),
    ],
)
def test_what_is_no_condition_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ArgumentTypeError) as caught:
        conditions(text)
    assert str(caught.value).startswith(sentence)
    code, said = refused("claimstatus", f"--fail-if={text}")
    assert (code, said[:11]) == (2, "--fail-if: ")
    assert "\n" not in said


def test_a_condition_has_one_meaning() -> None:
    (one,) = conditions(" oldest_due >= 15m ")
    assert (one.figure, one.sign, one.value) == ("oldest_due", ">=", timedelta(minutes=15))
    assert [c.value for c in conditions("oldest_due>0,paused_for>90")] == [
        timedelta(0),
        timedelta(seconds=90),
    ]


def test_every_figure_is_told_and_is_of_its_kind() -> None:
    put_off_and_due_for_an_hour()
    a_lease_that_ended_an_hour_ago()
    pause(Photo)
    figures = figures_of(overview(Photo, "default"), [])
    assert list(figures) == list(FIGURES)
    ages = {name for name, figure in figures.items() if isinstance(figure, timedelta)}
    assert ages == AGES


# --require-complete


def test_every_row_is_to_be_complete() -> None:
    words = ("testapp.Photo", "testapp.ClaimOnly", "--require-complete")
    assert judged(*words) == (0, "")
    completed(Photo, 3)
    assert judged(*words) == (0, "")
    in_each_state(Photo)
    make(ClaimOnly, 2)
    assert judged(*words) == (
        1,
        "testapp.Photo is not complete: 1 open, 1 processing, 1 failed, 1 paused;"
        " testapp.ClaimOnly is not complete: 2 open",
    )


# JSON


def told(*words: str) -> dict[str, Any]:
    return dict(json.loads(run("claimstatus", *words, "--format", "json")))


def test_json_has_everything_that_the_text_has() -> None:
    one_in_each_state()
    put_off_until_later()
    pause(Photo, by="ann", reason="deploy", until=600)
    throttled()
    change_settings(Photo, {"batch_size": 10, "lease": 30}, by="ada", using="default")
    process = worker("testapp.Photo", rows_held=2, rows_done=7, last_error="ValueError: no")
    WorkerOrder.objects.create(worker=process.name, order="drain", at=DatabaseNow(), by="ada")
    seen = told("testapp.Photo")
    assert seen["version"] == 1
    (photo,) = seen["models"]
    assert (photo["model"], photo["database"]) == ("testapp.Photo", "default")
    assert photo["figures"] | {"paused_for": 0} == {
        "open": 2,
        "due": 1,
        "waiting": 1,
        "processing": 1,
        "complete": 1,
        "failed": 1,
        "paused": 1,
        "total": 6,
        "unfinished": 4,
        "expired": 0,
        "throttles": 2,
        "workers": 1,
        "oldest_due": None,
        "oldest_expired": None,
        "paused_for": 0,
    }
    assert 0 <= photo["figures"]["paused_for"] < 60
    assert (photo["pause"]["by"], photo["pause"]["reason"]) == ("ann", "deploy")
    assert photo["pause"]["until"].endswith("+00:00")
    assert {one["process"] for one in photo["throttles"]} == {"v", "w"}
    settings = photo["settings"]
    assert (settings["batch_size"], settings["lease"], settings["concurrency"]) == (10, 30, None)
    assert settings["changed_by"] == "ada"
    assert [one["rows"] for one in photo["holders"]] == [1]
    (one,) = seen["workers"]
    assert (one["models"], one["held"], one["done"]) == (["testapp.Photo"], 2, 7)
    assert (one["alive"], one["last_error"]) == (True, "ValueError: no")
    assert [(order["order"], order["by"]) for order in one["orders"]] == [("drain", "ada")]
    assert (seen["failing"], seen["unreadable"]) == ([], [])


def test_json_tells_the_reasons_to_fail() -> None:
    one_failed()
    out = io.StringIO()
    words = ("--format", "json", "--fail-if", "failed>0")
    with pytest.raises(CommandError) as caught:
        call_command("claimstatus", "testapp.Photo", *words, stdout=out)
    assert caught.value.returncode == 1
    assert json.loads(out.getvalue())["failing"] == ["testapp.Photo: failed is 1 (failed>0)"]


@no_savepoint
def test_json_tells_what_could_not_be_read() -> None:
    out = io.StringIO()
    words = ("testapp.UuidKey", "testapp.Photo", "--format", "json")
    with table_away(UuidKey), pytest.raises(CommandError):
        call_command("claimstatus", *words, stdout=out)
    seen = json.loads(out.getvalue())
    assert [one["model"] for one in seen["unreadable"]] == ["testapp.UuidKey"]
    assert [one["model"] for one in seen["models"]] == ["testapp.Photo"]


# What was told from elsewhere


def test_live_settings_and_orders_are_shown() -> None:
    make(Job)
    words = ("claimstatus", "testapp.Job")
    assert "live settings" not in run(*words)
    change_settings(Job, {"batch_size": 10, "rate_limit": 2.5}, by="ada", using="default")
    process = worker("testapp.Job")
    WorkerOrder.objects.create(worker=process.name, order="drain", at=DatabaseNow(), by="bob")
    WorkerOrder.objects.create(
        worker=process.name, order="stop", at=DatabaseNow(), by="bob", done_at=DatabaseNow()
    )
    said = run(*words)
    assert "  live settings by ada since " in said
    assert ": batch size 10, rate limit 2.5\n" in said
    assert "  worker@host:0 was told by bob at " in said
    assert said.count("was told by") == 1
    change_settings(Job, {"batch_size": None, "rate_limit": None}, by="ada", using="default")
    assert "live settings" not in run(*words)


def test_the_page_tells_of_every_figure() -> None:
    page = Path(__file__).resolve().parent.parent / "docs" / "operating.md"
    table = page.read_text(encoding="utf-8").partition("| figure | what it is |")[2]
    told = re.findall(r"^\| (`.*?`) \|", table.partition("\n\n")[0], re.MULTILINE)
    assert sorted(name.strip("`") for cell in told for name in cell.split(", ")) == sorted(FIGURES)
