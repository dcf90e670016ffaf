"""``claimreset`` and ``claimprune``: what they count, ask, do and record."""

import sys
from typing import Any

import pytest
from django.db import IntegrityError, connection

from django_taskclaim.control.models import OperatorAct
from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.management.base import acting
from tests.commands import completed, failed, in_each_state, outcome, refused, run
from tests.factories import make
from tests.querysets.models import Parcel, Receipt, Stamp
from tests.querysets.support import facts
from tests.testapp.models import Photo

pytestmark = [pytest.mark.once, pytest.mark.django_db(databases="__all__")]

PRUNE = ("claimprune", "testapp.Photo", "--older-than", "30d")


def recorded() -> list[tuple[str, int, str, str]]:
    return [(act.act, act.rows, act.by, act.reason) for act in OperatorAct.objects.order_by("id")]


def open_among(rows: Any) -> int:
    return sum(facts(row).status == "open" for row in rows)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What somebody at a terminal will answer; the input ends after the last answer."""
    given: list[str] = []

    def answer(question: str) -> str:
        if not given:
            raise EOFError
        return given.pop()

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", answer)
    return given


@pytest.mark.promise(4)
@pytest.mark.parametrize(
    ("words", "changed"),
    [
        ((), {"failed"}),
        (("--complete",), {"complete"}),
        (("--running",), {"processing"}),
        (("--complete", "--running"), {"complete", "processing"}),
    ],
)
def test_only_the_states_that_are_named_are_reset(words: list[str], changed: set[str]) -> None:
    """The holder of a running row loses its claim."""
    rows = in_each_state(Photo)
    before = {state: facts(row).iteration for state, row in rows.items()}
    run("claimreset", "testapp.Photo", *words, "--by", "ada", "--reason", "the disk is mended")
    moved = {state for state, row in rows.items() if facts(row).iteration > before[state]}
    assert moved == changed
    assert open_among(rows[state] for state in changed) == len(changed)
    ((act, number, by, reason),) = recorded()
    assert (act, number, by) == ("reset", len(changed), acting("ada"))
    assert reason.endswith("the disk is mended")
    if "processing" in changed:
        with pytest.raises(ClaimLost):
            rows["processing"].claim.complete()


def test_rows_are_chosen_by_error_filter_and_limit() -> None:
    lost = failed(Photo, 6, ConnectionError("gone"), country=lambda i: "NZ" if i % 2 else "DE")
    wrong = failed(Photo, 1, ValueError("no"))
    lost_ones = ("--filter", "error_class=ConnectionError", "--filter", "country=NZ")
    words = ("claimreset", "testapp.Photo", *lost_ones)
    assert "Reset 2 rows" in run(*words, "--limit", "2")
    assert "Reset 1 row of" in run(*words)
    assert {row.country for row in lost if facts(row).status == "open"} == {"NZ"}
    assert open_among(wrong) == 0
    assert "no row matches (failed, country=SE)" in run(
        "claimreset", "testapp.Photo", "--filter", "country=SE"
    )
    assert len(recorded()) == 2


def test_paused_rows_are_opened_in_chunks(settings: Any) -> None:
    """Rows in other states are left alone; each act is recorded."""
    settings.TASKCLAIM = {"CHUNK_SIZE": 3}
    failed(Photo)
    make(Photo, 10, country=lambda i: "NZ" if i % 2 else "AU")
    Photo.objects.open().pause_rows()
    words = ("claimreset", "testapp.Photo", "--paused", "--by", "ada")
    assert "Resume 10 rows: not done" in run(*words, "--dry-run")
    assert "Resumed 2 rows" in run(*words, "--filter", "country=NZ", "--limit", "2")
    assert {row.country for row in Photo.objects.open()} == {"NZ"}
    assert "Resumed 8 rows" in run(*words, "--reason", "all of it")
    assert [act[:3] for act in recorded()] == [("resume rows", n, acting("ada")) for n in (2, 8)]
    assert recorded()[-1][3].endswith("all of it")
    assert Photo.objects.failed().count() == 1


def test_a_dry_run_only_counts() -> None:
    rows, old = failed(Photo, 3), completed(Photo, 2)
    assert "Reset 2 rows" in run("claimreset", "testapp.Photo", "--dry-run", "--limit", "2")
    assert "Prune 2 rows" in run(*PRUNE, "--dry-run")
    assert open_among([*rows, *old]) == 0
    assert Photo.objects.count() == 5
    assert recorded() == []


@pytest.mark.parametrize("words", [("claimreset", "testapp.Photo"), PRUNE], ids=lambda w: w[0])
def test_a_terminal_is_asked_before_anything_changes(
    words: tuple[str, ...], answers: list[str]
) -> None:
    """Only a yes changes rows, and a no is no error; ``--noinput`` asks nobody."""
    failed(Photo, 2)
    completed(Photo, 2)
    for answer in (["n"], [""], []):
        answers[:] = answer
        assert run(*words).endswith("\nNothing was done.\n")
    assert recorded() == []
    answers[:] = ["y"]
    run(*words, "--limit", "1")
    run(*words, "--noinput")
    assert [number for _act, number, *_ in recorded()] == [1, 1]


@pytest.mark.parametrize(
    ("error", "code"), [(IntegrityError("full\x1b[2J"), 1), (KeyboardInterrupt(), 130)]
)
def test_what_was_done_before_a_stop_is_reported_and_recorded(
    settings: Any, error: BaseException, code: int
) -> None:
    """Chunks are committed one by one, so the rows of the first two stay reset."""
    settings.TASKCLAIM = {"CHUNK_SIZE": 2}
    rows = failed(Photo, 6)

    def break_third(execute: Any, sql: str, *rest: Any) -> Any:
        if sql.startswith("UPDATE") and Photo.objects.open().count() == 4:
            raise error
        return execute(sql, *rest)

    with connection.execute_wrapper(break_third):
        ended, out, errors = outcome("claimreset", "testapp.Photo")
    assert ended == code
    assert "Reset 4 rows" in out + errors
    assert "\x1b" not in errors
    assert open_among(rows) == 4
    assert [number for _act, number, *_ in recorded()] == [4]


# claimprune


def test_old_rows_are_deleted_and_recorded() -> None:
    old, young = (
        completed(Photo, 4, country=lambda i: "NZ" if i else "DE"),
        completed(Photo, ago="29 DAY"),
    )
    failed(Photo)
    assert "Deleted 2 rows" in run(*PRUNE, "--filter", "country=NZ", "--limit", "2")
    assert "Deleted 2 rows" in run(*PRUNE, "--reason", "the table grows")
    assert not Photo.objects.filter(pk__in=[row.pk for row in old])
    assert Photo.objects.filter(pk=young[0].pk).exists()
    assert [act[:2] for act in recorded()] == [("prune", 2), ("prune", 2)]
    assert "the table grows" in recorded()[1][3]
    assert "no row matches" in run(*PRUNE)


def test_dependent_rows_are_named_before_they_go() -> None:
    """A protected row is one sentence, and nothing is deleted."""
    first, second = completed(Parcel, 2)
    Stamp.objects.bulk_create([Stamp(parcel=first), Stamp(parcel=first), Stamp(parcel=second)])
    receipt = Receipt.objects.create(parcel=first)
    words = ("claimprune", "testapp.Parcel", "--older-than", "30d")
    assert "testapp.Stamp" in run(*words, "--dry-run")
    code, message = refused(*words)
    assert (code, message.count("\n")) == (1, 0)
    assert "Receipt.parcel" in message
    assert Parcel.objects.count() == 2
    receipt.delete()
    assert "Deleted 2 rows" in run(*words)
    assert not Stamp.objects.exists()
