"""``claimreset`` and ``claimprune``: what they count, ask, do and record."""

import getpass
import io
import socket
import sys
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError

from django_taskclaim.control.models import OperatorAct
from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.management.commands import claimreset
from django_taskclaim.querysets import operating
from tests.behaviour.models import Parcel, Receipt, Stamp
from tests.behaviour.support import facts
from tests.behaviour.test_operators import in_each_state
from tests.behaviour.test_pruning import completed
from tests.factories import make
from tests.sources.app.models import Page, PageTask
from tests.test_commands import no_savepoint, refused, run, table_away
from tests.testapp.models import Child, ClaimOnly, Photo

pytestmark = pytest.mark.django_db(databases="__all__")


def failed(rows: int = 1, error: Any = "no", **values: Any) -> list[Any]:
    """Return photos that ended badly."""
    make(Photo, rows, **values)
    claimed = Photo.objects.claim_batch(rows)
    Photo.objects.fail(claimed, error, retry=False)
    return claimed


def recorded() -> list[tuple[str, str, int, str]]:
    acts = OperatorAct.objects.order_by("id")
    return [(act.model, act.act, act.rows, act.reason) for act in acts]


def statuses(rows: Any) -> list[str]:
    return [facts(row).status for row in rows]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What somebody at a terminal answers; what was asked is put in the answer's place."""
    given: list[str] = []
    asked: list[str] = []

    def answer(question: str) -> str:
        asked.append(question)
        if not given:
            raise EOFError
        word = given.pop()
        given.append(question)
        return word

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", answer)
    return given


# claimreset


def test_failed_rows_are_counted_reset_and_recorded() -> None:
    rows = failed(3)
    others = in_each_state(Photo)
    before = {state: facts(row) for state, row in others.items() if state != "failed"}
    said = run("claimreset", "testapp.Photo", "--by", "ada", "--reason", "the disk is mended")
    assert said == "testapp.Photo: 4 failed.\nReset 4 rows of testapp.Photo.\n"
    assert statuses(rows) == ["open"] * 3
    assert facts(rows[0]).attempts == 0
    assert {state: facts(others[state]) for state in before} == before
    assert recorded() == [("testapp.photo", "reset", 4, "failed: the disk is mended")]
    assert OperatorAct.objects.get().by == "ada"


def test_nothing_to_reset_is_said_and_is_no_act() -> None:
    make(Photo, 2)
    assert run("claimreset", "testapp.Photo") == "testapp.Photo: no row matches (failed).\n"
    assert recorded() == []


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        (["--failed"], {"failed"}),
        (["--complete"], {"complete"}),
        (["--running"], {"processing"}),
        (["--failed", "--complete"], {"failed", "complete"}),
        (["--failed", "--complete", "--running"], {"failed", "complete", "processing"}),
    ],
)
def test_the_states_that_are_named_and_no_others(words: list[str], changed: set[str]) -> None:
    rows = in_each_state(Photo)
    iterations = {state: facts(row).iteration for state, row in rows.items()}
    said = run("claimreset", "testapp.Photo", *words)
    moved = {state for state, row in rows.items() if facts(row).iteration > iterations[state]}
    assert moved == changed
    assert statuses(rows[state] for state in changed) == ["open"] * len(changed)
    assert ("taken from their holders" in said) == ("processing" in changed)
    if "processing" in changed:
        with pytest.raises(ClaimLost):
            rows["processing"].claim.complete()


def test_one_kind_of_error_alone() -> None:
    (lost,) = failed(error=ConnectionError("gone"))
    (wrong,) = failed(error=ValueError("no"))
    assert "Reset 1 row of" in run("claimreset", "testapp.Photo", "--error", "ConnectionError")
    assert statuses([lost, wrong]) == ["open", "failed"]
    assert recorded() == [("testapp.photo", "reset", 1, "failed, ConnectionError")]
    assert run("claimreset", "testapp.Photo", "--error", "OSError") == (
        "testapp.Photo: no row matches (failed, OSError). Failed rows ended with ValueError (1).\n"
    )


def test_filters_and_a_limit() -> None:
    rows = failed(6, country=lambda i: "NZ" if i % 2 else "DE")
    words = ("claimreset", "testapp.Photo", "--filter", "country=NZ", "--filter", "width__isnull=1")
    assert "Reset 2 rows" in run(*words, "--limit", "2")
    assert statuses(rows).count("open") == 2
    assert {row.country for row in rows if facts(row).status == "open"} == {"NZ"}
    assert recorded()[0][3] == "failed, country=NZ, width__isnull=1, 2 at most"
    assert "Reset 1 row of" in run(*words)


def test_a_row_that_others_have_claimed_meanwhile_is_left_to_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PostgreSQL does not look at a filter over joins again once it has the row's lock."""
    (row,), usual = failed(), operating.on_claim_table

    def as_first_seen(queryset: Any, desk: Any) -> Any:
        keys = [one.pk for one in usual(queryset, desk)]
        monkeypatch.setattr(operating, "on_claim_table", usual)
        Photo.objects.filter(pk=row.pk).reset()
        Photo.objects.claim_batch(1)
        return desk.rows.order_by().filter(pk__in=keys)

    monkeypatch.setattr(operating, "on_claim_table", as_first_seen)
    # The first to ask is whoever counts.
    monkeypatch.setattr(claimreset.Command, "matching", lambda self, choice: {"failed": 1})
    assert "Left alone: 1 row" in run("claimreset", "testapp.Photo")
    assert statuses([row]) == ["processing"]


def test_a_child_is_reset_through_its_parents_table() -> None:
    make(Child, 2, extra=lambda i: f"{i}")
    rows = Child.objects.claim_batch(2)
    Child.objects.fail(rows, "no", retry=False)
    assert "Reset 1 row" in run("claimreset", "testapp.Child", "--filter", "extra=1")


def test_a_dry_run_does_nothing() -> None:
    rows = failed(3)
    said = run("claimreset", "testapp.Photo", "--dry-run", "--limit", "2")
    assert said == "testapp.Photo: 3 failed.\nReset 2 rows: not done, --dry-run.\n"
    assert statuses(rows) == ["failed"] * 3
    assert recorded() == []


def test_it_asks_at_a_terminal(answers: list[str]) -> None:
    rows = failed(3)
    answers.append("y")
    run("claimreset", "testapp.Photo", "--limit", "2")
    assert answers == ["Reset 2 rows? [y/N] "]
    assert statuses(rows).count("open") == 2


@pytest.mark.parametrize("answer", ["n", "", "maybe", None])
def test_any_other_answer_changes_nothing(answers: list[str], answer: str | None) -> None:
    rows = failed(2)
    if answer is not None:
        answers.append(answer)
    assert refused("claimreset", "testapp.Photo") == (1, "Nothing was done.")
    assert statuses(rows) == ["failed"] * 2
    assert recorded() == []


def test_noinput_asks_nobody(answers: list[str]) -> None:
    failed(2)
    assert "Reset 2 rows" in run("claimreset", "testapp.Photo", "--noinput")
    assert answers == []


def test_whoever_runs_it_is_recorded() -> None:
    failed()
    run("claimreset", "testapp.Photo")
    assert OperatorAct.objects.get().by == f"{getpass.getuser()}@{socket.gethostname()}"


def test_the_other_database() -> None:
    Photo.objects.create(status="failed")
    Photo.objects.using("other").create(status="failed")
    assert "Reset 1 row" in run("claimreset", "testapp.Photo", "--database", "other")
    assert Photo.objects.failed().count() == 1
    assert OperatorAct.objects.count() == 0
    assert OperatorAct.objects.using("other").count() == 1


@pytest.mark.parametrize("what", [OperationalError("the disk is full"), KeyboardInterrupt()])
def test_what_was_done_before_it_was_stopped_is_told_and_recorded(
    monkeypatch: pytest.MonkeyPatch, settings: Any, what: BaseException
) -> None:
    settings.TASKCLAIM = {"CHUNK_SIZE": 2}
    rows = failed(6)
    usual, chunks = operating.reset_assignments, []

    def assignments(desk: Any) -> Any:
        chunks.append(1)
        if len(chunks) == 3:
            raise what
        return usual(desk)

    monkeypatch.setattr(operating, "reset_assignments", assignments)
    out = io.StringIO()
    with pytest.raises(CommandError) as caught:
        call_command("claimreset", "testapp.Photo", stdout=out)
    told = out.getvalue() + str(caught.value)
    assert "Reset 4 rows, and that stays." in told
    assert caught.value.returncode == (130 if isinstance(what, KeyboardInterrupt) else 1)
    assert statuses(rows).count("open") == 4
    assert recorded() == [("testapp.photo", "reset", 4, "failed")]


WRONG = [
    (("claimreset",), "The following arguments are required: app.Model."),
    (("claimreset", "testapp.Photo", "--limit", "0"), "--limit: '0' is no whole number from 1."),
    (
        ("claimreset", "testapp.Photo", "--filter", "country"),
        "--filter 'country' is no filter; write lookup=value,",
    ),
    (
        ("claimreset", "testapp.Photo", "--filter", "land=NZ"),
        "--filter land=NZ: testapp.Photo has no field 'land'.",
    ),
    (
        ("claimreset", "testapp.Photo", "--filter", "testapp.Job:act=x"),
        "--filter testapp.Job:act=x: the model is testapp.Photo.",
    ),
    (
        ("claimreset", "testapp.ClaimOnly", "--error", "ValueError"),
        "testapp.ClaimOnly keeps no error_class, so nobody knows which error its rows ended with.",
    ),
    (
        ("claimprune", "testapp.Photo", "--older-than", "30d"),
        "The following arguments are required: --complete.",
    ),
    (
        ("claimprune", "testapp.Photo", "--complete"),
        "The following arguments are required: --older-than.",
    ),
    (
        ("claimprune", "testapp.Photo", "--complete", "--older-than", "a month"),
        "--older-than: 'a month' is no time longer than zero; write seconds,",
    ),
    (
        ("claimprune", "testapp.ClaimOnly", "--complete", "--older-than", "30d"),
        "testapp.ClaimOnly has no completed_at, so nobody knows how long its rows have been complete.",
    ),
]


@pytest.mark.parametrize(("words", "sentence"), WRONG, ids=[" ".join(words) for words, _ in WRONG])
def test_a_wrong_word_is_one_sentence(words: tuple[str, ...], sentence: str) -> None:
    make(ClaimOnly)
    code, said = refused(*words)
    assert code == 2
    assert said.startswith(sentence)
    assert "\n" not in said


@no_savepoint
def test_a_table_that_is_not_there_is_named() -> None:
    with table_away(Photo):
        code, said = refused("claimreset", "testapp.Photo")
    assert code == 2
    assert said.startswith(
        "The database 'default' has no table testapp_photo for testapp.Photo. Run:"
    )


# claimprune

PRUNE = ("claimprune", "testapp.Photo", "--complete", "--older-than", "30d")


def test_old_rows_are_counted_deleted_and_recorded() -> None:
    old, young = completed(Photo, 3), completed(Photo, 1, "29 DAY")
    failed()
    said = run(*PRUNE, "--reason", "the table grows")
    assert said == (
        "testapp.Photo (for more than 30 d): 3 complete.\nDeleted 3 rows of testapp.Photo.\n"
    )
    assert Photo.objects.filter(pk__in=[row.pk for row in old]).count() == 0
    assert Photo.objects.filter(pk=young[0].pk).exists()
    assert recorded() == [
        ("testapp.photo", "prune", 3, "complete, for more than 30 d: the table grows")
    ]
    assert run(*PRUNE) == "testapp.Photo: no row matches (complete, for more than 30 d).\n"


def test_a_dry_prune_a_limit_and_a_filter() -> None:
    completed(Photo, 4, country=lambda i: "NZ" if i else "DE")
    assert "Delete 3 rows: not done" in run(*PRUNE, "--filter", "country=NZ", "--dry-run")
    assert Photo.objects.count() == 4
    assert "Deleted 2 rows" in run(*PRUNE, "--filter", "country=NZ", "--limit", "2")
    assert sorted(Photo.objects.values_list("country", flat=True)) == ["DE", "NZ"]


def test_a_prune_is_asked_for_and_a_no_deletes_nothing(answers: list[str]) -> None:
    completed(Photo, 2)
    assert refused(*PRUNE) == (1, "Nothing was done.")
    assert Photo.objects.count() == 2
    answers.append("yes")
    run(*PRUNE)
    assert answers == ["Delete 2 rows? [y/N] "]
    assert Photo.objects.count() == 0


def test_that_companions_can_come_again_is_said_before() -> None:
    Page.objects.create(slug="one")
    PageTask.objects.populate(Page.objects.all())
    PageTask.objects.claim_batch(1)[0].claim.complete()
    label = PageTask._meta.label
    said = run("claimprune", label, "--complete", "--older-than", "0.000001", "--dry-run")
    assert "Their sources have no row then: populate() adds one for each again" in said


def test_what_goes_with_the_rows_is_said_before_and_after() -> None:
    first, second = completed(Parcel, 2)
    Stamp.objects.bulk_create([Stamp(parcel=first), Stamp(parcel=first), Stamp(parcel=second)])
    words = ("claimprune", "testapp.Parcel", "--complete", "--older-than", "30d")
    warned = "What refers to them goes with them: testapp.Stamp.\n"
    assert warned in run(*words, "--dry-run")
    said = run(*words)
    assert warned in said
    assert said.endswith("Deleted 2 rows of testapp.Parcel, and with them 3 testapp.Stamp.\n")


def test_the_tables_of_a_child_are_no_others() -> None:
    completed(Child, 2)
    said = run("claimprune", "testapp.Child", "--complete", "--older-than", "30d")
    assert said.endswith(
        "testapp.Child (for more than 30 d): 2 complete.\nDeleted 2 rows of testapp.Child.\n"
    )


def test_a_protected_row_is_one_sentence() -> None:
    (row,) = completed(Parcel)
    Receipt.objects.create(parcel=row)
    code, said = refused("claimprune", "testapp.Parcel", "--complete", "--older-than", "30d")
    assert code == 1
    assert said.startswith("testapp.Parcel on 'default': Cannot delete some instances")
    assert "Receipt.parcel" in said
    assert "\n" not in said
    assert Parcel.objects.count() == 1
    assert recorded() == []
