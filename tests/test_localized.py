"""Durations, moments and lists in the reader's language; in English the pages say what the commands print."""

import ast
from collections.abc import Iterator
from datetime import datetime, timedelta
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command
from django.utils import timezone, translation

import django_taskclaim
from django_taskclaim import localized, wording
from tests.factories import make
from tests.marking import reading_marks
from tests.testapp.models import Job

DURATIONS = [0, 0.4, 41, 60, 250, 3600, 3605, 7384, 86_400, 90_061, 200_000]


@pytest.fixture
def _in_english() -> Iterator[None]:
    with translation.override("en-gb"):
        yield


@pytest.mark.usefixtures("_in_english")
@pytest.mark.parametrize("seconds", DURATIONS)
def test_durations_are_told_as_commands_print_them(seconds: float) -> None:
    duration = timedelta(seconds=seconds)
    assert localized.lasting(duration) == wording.lasting(duration)


@pytest.mark.usefixtures("_in_english")
@pytest.mark.parametrize("days", [0, 3])
def test_moments_are_told_as_commands_print_them(days: int) -> None:
    now = timezone.now() + timedelta(days=days)
    assert localized.moment(now) == wording.moment(now)
    assert localized.clock_time(now) == wording.clock_time(now)


@pytest.mark.usefixtures("_in_english")
@pytest.mark.parametrize("count", range(8))
def test_lists_are_told_as_commands_print_them(count: int) -> None:
    assert localized.listed(range(count)) == wording.listed(range(count))


@pytest.mark.parametrize(
    ("language", "told"),
    [
        ("en", "2026-05-04 14:02"),
        ("de", "4. Mai 2026 14:02"),
        ("fi", "4. toukokuuta 2026 14.02"),
        ("ja", "2026年5月4日 14:02"),
        # Counts to twelve in Django's format, which a control room does not.
        ("ko", "2026년 5월 4일 14:02"),
    ],
)
def test_a_moment_follows_the_formats_of_the_language(language: str, told: str) -> None:
    with translation.override(language):
        assert localized.clock_time(datetime(2026, 5, 4, 14, 2, 5)) == told


@pytest.mark.parametrize(("language", "told"), [("de", "14:02:05"), ("fi", "14.02.05")])
def test_seconds_stand_behind_the_sign_of_the_minutes(language: str, told: str) -> None:
    with translation.override(language):
        assert localized.moment(datetime(2026, 5, 4, 14, 2, 5)).split()[-2] == told


@pytest.mark.django_db(databases="__all__")
@pytest.mark.parametrize("command", ["claimdoctor", "claimstatus", "claimpause", "claimresume"])
def test_commands_print_english_whatever_the_language_of_the_site(command: str) -> None:
    make(Job, 2)
    printed = StringIO()
    with reading_marks():
        call_command(command, "testapp.Job", stdout=printed)
    assert printed.getvalue()
    assert "⟦" not in printed.getvalue()


#: How many texts each call takes that ``makemessages`` has to find.
TEXTS = {"_": 1, "gettext": 1, "gettext_lazy": 1, "gettext_noop": 1}
TEXTS |= {"ngettext": 2, "pgettext": 2, "pgettext_lazy": 2}


def test_makemessages_finds_every_text() -> None:
    """What is translated is written where it is asked for; else no catalogue would ever hold it."""
    package = Path(django_taskclaim.__file__).parent
    computed = [
        f"{path.relative_to(package)}: {ast.unparse(call)}"
        for path in sorted(package.rglob("*.py"))
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
        for text in call.args[: TEXTS.get(call.func.id, 0)]
        if not isinstance(text, ast.Constant)
    ]
    # One of `history.FATES`, each of which is marked there.
    assert computed == ["admin/timeline.py: _(detail)"]
