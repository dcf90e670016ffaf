"""``claimpause --rows`` and ``claimresume --rows``: which rows, how many at a time, and what is said and kept."""

from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_taskclaim.control.models import OperatorAct
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.states import Status
from django_taskclaim.switch import pause, paused_by
from tests.factories import make
from tests.testapp.models import Job, Photo

pytestmark = pytest.mark.django_db(databases="__all__")


def run(command: str, *words: str) -> str:
    said = StringIO()
    call_command(command, *words, stdout=said, stderr=said)
    return said.getvalue()


def paused(n: int, **values: Any) -> list[Any]:
    rows = make(Photo, n, **values)
    Photo.objects.filter(pk__in=[row.pk for row in rows]).pause_rows()
    return rows


def count(status: Status) -> int:
    return Photo.objects.filter(status=status).count()


def test_paused_rows_are_opened_in_chunks(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.TASKCLAIM = {"CHUNK_SIZE": 3}
    paused(10)
    make(Photo, 2)
    told: list[int] = []
    verb = ClaimQuerySet.resume_rows

    def heard(rows: Any, *, limit: int | None = None, progress: Any = None) -> int:
        return verb(rows, limit=limit, progress=lambda total: (told.append(total), progress(total)))

    monkeypatch.setattr(ClaimQuerySet, "resume_rows", heard)
    said = run("claimresume", "testapp.Photo", "--rows")
    assert "Opened 10 rows of testapp.Photo." in said
    assert count(Status.OPEN) == 12
    assert told[:3] == [3, 6, 9]


def test_some_are_chosen_and_bounded() -> None:
    paused(5, country="NZ")
    paused(5, country="AU")
    said = run("claimresume", "testapp.Photo", "--rows", "--filter", "country=NZ", "--limit", "2")
    assert "Opened 2 rows" in said
    opened = Photo.objects.filter(status=Status.OPEN)
    assert {row.country for row in opened} == {"NZ"}
    assert count(Status.PAUSED) == 8


def test_rows_are_paused_while_running_ones_go_on() -> None:
    make(Photo, 4)
    (running,) = Photo.objects.claim_batch(1)
    assert "Paused 3 rows" in run("claimpause", "testapp.Photo", "--rows")
    assert running.claim.check()
    assert paused_by(Photo) is None


def test_it_is_recorded_who_did_it_and_why() -> None:
    paused(3)
    words = ["--rows", "--by", "ada", "--reason", "the past may begin", "--filter", "country="]
    run("claimresume", "testapp.Photo", *words)
    (act,) = OperatorAct.objects.all()
    assert (act.act, act.rows, act.by) == ("resume rows", 3, "ada")
    assert act.reason == "paused, country=: the past may begin"


def test_a_dry_run_counts_only() -> None:
    paused(3)
    assert "Open 3 rows: not done" in run("claimresume", "testapp.Photo", "--rows", "--dry-run")
    assert count(Status.PAUSED) == 3


def test_rows_that_nobody_would_take_are_told() -> None:
    paused(1)
    pause(Photo)
    said = run("claimresume", "testapp.Photo", "--rows")
    assert "before manage.py claimresume testapp.Photo" in said
    assert paused_by(Photo) is not None


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["claimresume", "testapp.Photo", "--limit", "3"], "say --rows"),
        (["claimpause", "testapp.Photo", "--filter", "country=NZ"], "say --rows"),
        (["claimpause", "testapp.Photo", "--rows", "--until", "1h"], "--until ends a pause"),
        (["claimresume", "testapp.Photo", "testapp.Job", "--rows"], "takes one model"),
        (["claimresume", "--all", "--rows"], "takes one model"),
        (["claimresume", "testapp.Photo", "--rows", "--filter", "nope=1"], "no field 'nope'"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(words: list[str], sentence: str) -> None:
    make(Job, 1)
    with pytest.raises(CommandError, match=sentence) as caught:
        run(*words)
    assert caught.value.returncode == 2
    assert Job.objects.open().count() == 1
