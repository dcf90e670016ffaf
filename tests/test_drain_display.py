"""``claimworker --drain`` on a terminal: what is drawn at its foot, and that nobody is kept waiting by it."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.behaviour.support import DEADLINE
from tests.terminal import Screen, Terminal
from tests.worker.conftest import jobs, states, wait_until

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

DRAIN = ("claimworker", "testapp.Job", "--drain", "--poll", "0.2", "--batch-size", "5")

Open = Callable[..., Terminal]

#: The end of the picture, where everything was drawn before it.
CREW = r"^ +worker@\S+ +testapp\.Job +running "


@pytest.fixture
def terminal(process_env: dict[str, str]) -> Iterator[Open]:
    """Open a terminal with a drain in it."""
    opened: list[Terminal] = []

    def open_one(*options: str, term: str = "xterm", lines: int = 30, **env: str) -> Terminal:
        one = Terminal({**process_env, **env}, *DRAIN, *options, size=(100, lines), term=term)
        opened.append(one)
        return one

    yield open_one
    for one in opened:
        one.end()


def processes_below(pid: int, word: bytes) -> list[int]:
    """Return the children of a process whose command line has *word* in it."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            words = (folder / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(parent) == pid and word in words:
            found.append(int(folder.name))
    return found


def onlooker_of(terminal: Terminal) -> int:
    (found,) = processes_below(terminal.process.pid, b"look_on")
    return found


def test_it_shows_how_the_work_goes_on_and_what_was_done(terminal: Open) -> None:
    """Bar, states, rate, forecast, errors and workers below what is logged; at the end what was done in which time."""
    jobs(1, "permanent")
    jobs(60, "sleep:0.2")
    jobs(1, status="paused")
    shown = terminal()
    screen = shown.wait_for(
        r"^testapp\.Job$",
        r"^ +━+ +\d+\.\d % +\d+ of 62$",
        r"^ +■ \d+ complete   ■ 1 failed   ■ \d+ running   ■ 1 paused   ■ \d+ open$",
        r"^ +\d+\.\d rows/s over the last \d+ s, about \d+ s left, done at \d\d:\d\d",
        r"^Last errors$",
        r"^ +testapp\.Job \d+: \S*Permanent: ",
        CREW,
    )
    assert screen.scrolls < (0, 29)
    end = Screen(shown.rest_of_all(), 100, 30)
    assert shown.process.wait() == 0
    assert end.scrolls == (0, 29)
    assert re.search(
        r"^testapp\.Job: 60 rows complete and 1 failed in .* \(\d+\.\d rows/s\), none left, 1 paused\.$",
        end.text.rstrip().splitlines()[-1],
    )
    assert "worker: 60 rows done, 1 failed, 0 held\n" in end.text
    # Nothing of a picture is left among the lines that have scrolled by.
    assert end.text.count("━ ") == 1


def test_what_others_write_is_whole_and_scrolls_by_above_the_picture(terminal: Open) -> None:
    jobs(60, "sleep:0.2")
    shown = terminal("-v", "2", lines=20)
    shown.wait_for(CREW)
    shown.resize(70, 24)
    shown.wait_for("^─{50,66} \\d+ s ──$", CREW)
    shown.rest_of_all()
    assert shown.process.wait() == 0
    written = re.sub(r"\x1b7.*?\x1b8", "", shown.all, flags=re.DOTALL)
    assert len(re.findall(r"^\d\d:\d\d:\d\d INFO Completed ", written, re.MULTILINE)) >= 8
    assert "Traceback" not in written


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_gives_rows_and_terminal_back(terminal: Open, number: signal.Signals) -> None:
    """Sent to the whole group, as Ctrl-C is; the process that draws outlives it."""
    jobs(50, "sleep:0.3")
    shown = terminal()
    shown.wait_for(CREW)
    for pid in (onlooker_of(shown), shown.process.pid):
        os.kill(pid, number)
    end = Screen(shown.rest_of_all(), 100, 30)
    assert shown.process.wait() == 0
    assert end.scrolls == (0, 29)
    assert "processing" not in states()


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_nobody_waits_for_the_process_that_draws(terminal: Open, number: signal.Signals) -> None:
    jobs(30, "sleep:0.2")
    shown = terminal()
    shown.wait_for(CREW)
    os.kill(onlooker_of(shown), number)
    end = Screen(shown.rest_of_all(), 100, 30)
    assert shown.process.wait() == 0
    assert states() == {"complete": 30}
    assert end.scrolls == (0, 29)


def test_a_killed_supervisor_leaves_the_terminal_as_it_was(terminal: Open) -> None:
    jobs(50, "sleep:0.3")
    shown = terminal()
    shown.wait_for(CREW)
    onlooker = onlooker_of(shown)
    shown.process.kill()
    end = Screen(shown.rest_of_all(), 100, 30)
    assert end.scrolls == (0, 29)
    wait_until(lambda: not Path(f"/proc/{onlooker}").exists(), DEADLINE)


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_terminal_that_cannot_be_drawn_on_gets_lines(terminal: Open, term: str) -> None:
    jobs(40, "sleep:0.3")
    shown = terminal(term=term)
    shown.read_until(r"\d\d:\d\d:\d\d \S+ testapp\.Job: \d+\.\d %  \d+ of 40")
    shown.rest_of_all()
    assert "\x1b" not in shown.all
    assert "testapp.Job: 40 rows complete and 0 failed in " in shown.all


def test_without_colours_letters_tell_the_states(terminal: Open) -> None:
    jobs(40, "sleep:0.2")
    shown = terminal(NO_COLOR="1")
    shown.wait_for(r"^ +#+>+\.+ +\d+\.\d % +\d+ of 40$", r"^ +# \d+ complete   > ")
    assert not re.search(r"\x1b\[[\d;]*m", shown.all)


def test_elsewhere_nothing_is_drawn(process_env: dict[str, str], terminal: Open) -> None:
    """Neither into a pipe nor where nothing is to be said."""
    jobs(20, "sleep:0.2")
    command = [sys.executable, "-m", "django", *DRAIN]
    done = subprocess.run(command, env=process_env, capture_output=True, text=True, check=True)
    assert re.fullmatch(r"Working on testapp\.Job in 1 process .*\n", done.stdout)
    assert all(re.match(r"\d\d:\d\d:\d\d INFO worker", line) for line in done.stderr.splitlines())
    jobs(20, "sleep:0.2")
    shown = terminal("-v", "0")
    wait_until(lambda: states() == {"complete": 40})
    assert "\x1b" not in shown.rest_of_all()


OWN_SCRIPT = """
import sys
from django.conf import settings
from tests import settings as usual

settings.configure(**{name: value for name, value in vars(usual).items() if name.isupper()})
if __name__ == "__main__":
    from django.core.management import execute_from_command_line
    execute_from_command_line(sys.argv)
"""


def test_a_script_that_configures_django_itself(
    process_env: dict[str, str], tmp_path: Path
) -> None:
    """Another process has no settings to draw with, and complains to nobody."""
    script = tmp_path / "manage.py"
    script.write_text(OWN_SCRIPT)
    env = {name: value for name, value in process_env.items() if name != "DJANGO_SETTINGS_MODULE"}
    jobs(20, "sleep:0.2")
    shown = Terminal(env, *DRAIN, size=(100, 30), program=(str(script),))
    try:
        shown.read_until("20 rows done, 0 failed")
    finally:
        shown.end()
    assert "Traceback" not in shown.all
