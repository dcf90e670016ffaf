"""``claimstatus --watch``: what stands in the terminal while it runs, and afterwards."""

import io
import os
import re
import signal
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.management.base import OutputWrapper
from django.db import connection

from django_taskclaim import overview as overview_module
from django_taskclaim.census import Census
from django_taskclaim.management import display, figures
from django_taskclaim.management.commands.claimstatus import Command
from django_taskclaim.management.display import Pace, clipped, draw
from django_taskclaim.overview import Worker, overview
from django_taskclaim.querysets import Progress
from tests.behaviour.support import DEADLINE
from tests.factories import make
from tests.terminal import Terminal
from tests.test_commands import no_savepoint, refused, table_away
from tests.testapp.models import Photo, UuidKey

pytestmark = pytest.mark.django_db(databases="__all__")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_is_drawn_again_until_it_is_stopped_and_what_was_last_seen_stays(
    number: signal.Signals, process_env: dict[str, str]
) -> None:
    make(Photo, 3)
    shown = Terminal(
        process_env,
        "claimstatus",
        "testapp.Photo",
        "--watch",
        "100ms",
        "--no-color",
        size=(100, 30),
    )
    try:
        shown.read_until(r"\x1b\[\?1049h.*\x1b\[Hclaimstatus every 0 s.*testapp\.Photo.* 0 of 3\b")
        make(Photo, 4)
        shown.read_until(r"\x1b\[H.*testapp\.Photo.* 0 of 7\b")
        shown.process.send_signal(number)
        # Back on the terminal's own screen.
        shown.read_until(r"\x1b\[\?25h\x1b\[\?1049l")
        assert re.search(r"^testapp\.Photo\r\n +\.+ +0\.0 % +0 of 7\r\n", shown.rest())
        assert shown.process.wait(DEADLINE) == 0
    finally:
        shown.end()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--watch",), "--watch needs a terminal to draw on."),
        (("--watch", "0"), "--watch: '0' is no time longer than zero;"),
        (("--watch", "--format", "json"), "--watch is for people to look at;"),
        (("--watch", "--fail-if", "due>0"), "--watch is for people to look at;"),
        (("--watch", "--require-complete"), "--watch is for people to look at;"),
    ],
)
def test_where_it_cannot_be_drawn_one_sentence_says_so(
    words: tuple[str, ...], sentence: str
) -> None:
    code, said = refused("claimstatus", "testapp.Photo", *words)
    assert code == 2
    assert said.startswith(sentence)


@no_savepoint
def test_a_database_that_refuses_is_part_of_the_picture() -> None:
    where = [(UuidKey, "default"), (Photo, "default")]
    with table_away(UuidKey):
        picture = pictured(*where)
    assert "has no table testapp_uuidkey for testapp.UuidKey." in picture
    assert "testapp.Photo\n" in picture
    assert "has no table" not in pictured(*where)


def test_questions_that_take_too_long_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that cannot be read in time is part of the picture, as is the next one."""
    make(Photo, 300)
    table = connection.ops.quote_name(Photo._meta.db_table)

    def endless(*args: Any, **options: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT COUNT(*) FROM {table} a, {table} b, {table} c, {table} d, {table} e"
            )

    monkeypatch.setattr(figures, "overview", endless)
    assert "testapp.Photo on 'default' cannot be read: " in pictured((Photo, "default"))


def pictured(*where: tuple[Any, str], width: int = 80) -> str:
    command = Command(no_color=True)
    return "\n".join(command._picture(command._look([*where]), width))


def test_estimates_are_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    make(Photo)
    estimate = Census(Progress(open=30_000_000, failed=3), frozenset({"open"}))
    monkeypatch.setattr(overview_module, "census", lambda model, alias: estimate)
    _, line, legend = pictured((Photo, "default")).splitlines()[:3]
    assert line.endswith("  0.0 %  ~3 of ~30,000,003")
    assert legend == "  x 3 failed   . ~30,000,000 open"


def test_the_bar_shows_every_state_and_is_as_wide_as_the_window() -> None:
    make(Photo, 60)
    done: Any = Photo.objects.claim_batch(30)
    Photo.objects.complete(done)
    for row in Photo.objects.claim_batch(2):
        row.claim.fail(ValueError("no\x1b[2J picture"), retry=False)
    Photo.objects.claim_batch(9)
    Photo.objects.filter(pk__in=Photo.objects.open().values("pk")[:1]).pause_rows()
    for width in (60, 80, 110):
        _, line, *rest = pictured((Photo, "default"), width=width).splitlines()
        assert re.fullmatch(r"  #+x+>+=\.+  53\.3 %  32 of 60", line)
        assert len(line) == width
        assert "# 30 complete   x 2 failed   > 9 running   = 1 paused" in rest[0]
        assert rest[-1] == "Workers: none alive"
    # What rows say may not reach into the terminal.
    assert re.search(
        r"\nLast errors\n  testapp.Photo \d+: ValueError: no \[2J picture\n", "\n".join(rest)
    )


def drawn(lines: list[str], monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]) -> list[str]:
    out = io.StringIO()
    monkeypatch.setattr(display.shutil, "get_terminal_size", lambda: os.terminal_size(size))
    draw(OutputWrapper(out), lines)
    text = out.getvalue()
    assert text.startswith("\x1b[H")
    return text.removeprefix("\x1b[H").removesuffix("\x1b[J").replace("\x1b[K", "").split("\r\n")


def test_a_picture_never_leaves_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"line {number} of ten" for number in range(10)]
    assert drawn(lines, monkeypatch, (80, 10)) == lines
    assert drawn(lines, monkeypatch, (6, 4)) == ["line 0", "line 1", "line 2", "… 7 mo"]


def test_colours_have_no_width_and_end_where_a_line_is_cut() -> None:
    line = "\x1b[31;1mred\x1b[0m and plain"
    assert clipped(line, 13) == line
    assert clipped(line, 2) == "\x1b[31;1mre\x1b[0m"


def test_the_pace_is_that_of_the_last_half_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    make(Photo, 10)
    now = SimpleNamespace(monotonic=lambda: 0.0)
    monkeypatch.setattr(display, "time", now)
    pace = Pace()

    def look(at: float, done: int) -> list[str]:
        rows: Any = Photo.objects.claim_batch(done) if done else []
        Photo.objects.complete(rows)
        now.monotonic = lambda: at
        pace.note(overview(Photo, "default"))
        return list(pace.told(overview(Photo, "default")))

    assert look(0, 0) == []
    (told,) = look(10, 5)
    assert re.fullmatch(r"0\.5 rows/s over the last 10 s, about 10 s left, done at \d\d:\d\d", told)
    (told,) = look(35, 1)
    assert told.startswith("0.0 rows/s over the last 25 s, about 1 min 40 s left, done at ")
    assert look(200, 0) == []


def test_the_pace_of_a_large_table_is_what_its_workers_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = SimpleNamespace(monotonic=lambda: 0.0)
    monkeypatch.setattr(display, "time", now)
    pace = Pace()
    seen = replace(
        overview(Photo, "default"), progress=Progress(open=6_000), estimated=frozenset({"open"})
    )

    def look(at: float, **done: int) -> list[str]:
        now.monotonic = lambda: at
        pace.note(seen, [reported(name, count) for name, count in done.items()])
        return list(pace.told(seen))

    assert look(0, one=900) == []
    assert look(8, one=1_000) == []
    # The second has begun since, and the first has ended: what it did stays done.
    (told,) = look(10, one=1_700, two=200)
    assert told.startswith("about 100.0 rows/s over the last 10 s, about 1 min left, done at ")
    (told,) = look(20, two=1_200)
    assert told.startswith("about 100.0 rows/s over the last 20 s, about 1 min left, done at ")


def reported(name: str, done: int) -> Worker:
    moment = datetime.now(UTC)
    return Worker(name, ("testapp.Photo",), "running", moment, moment, 0, done, 0, "", True)
