"""The health file: touched while all is well, left to age when something hangs, gone at the end."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, connections

from django_taskclaim.models import Throttle
from django_taskclaim.switch import pause
from django_taskclaim.worker import health
from django_taskclaim.worker.health import HealthFile, Silence, goes_on
from tests import servers
from tests.chaos.proxy import ProxyProcess
from tests.factories import make
from tests.freezing import freeze
from tests.testapp.models import Job, Ledger, TextKey, UuidKey
from tests.worker.conftest import Worker, jobs, states, wait_until

Start = Callable[..., Worker]


def real(test: Any) -> Any:
    """Mark a test of real processes, which is run by hand."""
    return pytest.mark.long(pytest.mark.django_db(transaction=True, databases="__all__")(test))


#: Run in the supervisor, so that a test need not wait half a minute.
IMPATIENT = """
from django_taskclaim.worker import supervisor
supervisor.SIGN_WITHIN = 3.0
"""


def touched(path: Path) -> float:
    """Return when the file was last touched; 0 where it is absent."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def is_touched_again(path: Path) -> bool:
    """Say whether the file is touched once more within the 5 s that are promised."""
    before, end = touched(path), time.monotonic() + 5 + 1
    while time.monotonic() < end:
        if touched(path) > before:
            return True
        time.sleep(0.05)
    return False


def grows_old(path: Path, seconds: float) -> bool:
    """Say whether the file has not been touched for so long."""
    return time.time() - touched(path) > seconds


@real
@pytest.mark.parametrize("mode", [[], ["--in-process"]], ids=["supervised", "in-process"])
def test_it_is_touched_while_the_worker_lives(
    start_worker: Start, tmp_path: Path, mode: list[str]
) -> None:
    """It appears once the worker works, is touched every few seconds, and goes when the worker ends."""
    path = tmp_path / "alive"
    path.touch()
    os.utime(path, (0, 0))
    worker = start_worker("--health-file", str(path), *mode)
    wait_until(lambda: touched(path) > 1, 30, "the dead worker's file is replaced")
    assert worker.session()
    assert is_touched_again(path)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert not path.exists()


@real
def test_a_frozen_child_lets_it_age(start_worker: Start, tmp_path: Path) -> None:
    """One child of two that gives no sign is enough; once it goes on, all is well again."""
    path = tmp_path / "alive"
    worker = start_worker("--health-file", str(path), "--processes", "2", first=IMPATIENT)
    wait_until(lambda: touched(path), 40)
    child = worker.children()[0]
    freeze(child)
    wait_until(lambda: grows_old(path, 7), 15, "nobody touches it")
    os.kill(child, signal.SIGCONT)
    wait_until(lambda: not grows_old(path, 5), 10, "it is touched again")


@real
def test_children_that_cannot_start_leave_none(start_worker: Start, tmp_path: Path) -> None:
    path = tmp_path / "alive"
    worker = start_worker("--health-file", str(path), TASKCLAIM_TEST_STILLBORN="7")
    wait_until(lambda: len([e for e in worker.events() if e["level"] == "ERROR"]) >= 2, 40)
    assert not path.exists()


@real
@pytest.mark.parametrize("thread", ["claimer", "service"])
def test_a_thread_that_hangs_lets_it_age(start_worker: Start, tmp_path: Path, thread: str) -> None:
    """The process lives, its main thread too, and yet no work is done: that is not well."""
    path = tmp_path / "alive"
    worker = start_worker("--health-file", str(path), "--in-process")
    wait_until(lambda: touched(path), 30)
    jobs(1, f"hang:{thread}")
    wait_until(Ledger.objects.exists)
    wait_until(lambda: grows_old(path, 7), 20, "nobody touches it")
    assert worker.process.poll() is None


@real
def test_a_pause_is_no_illness(start_worker: Start, tmp_path: Path) -> None:
    """Nothing is claimed, as was asked for."""
    path = tmp_path / "alive"
    pause(Job)
    jobs(1)
    start_worker("--health-file", str(path), "--in-process")
    wait_until(lambda: touched(path), 30)
    for _ in range(2):
        assert is_touched_again(path)
    assert states() == {"open": 1}


@real
def test_a_throttle_is_no_illness(start_worker: Start, tmp_path: Path) -> None:
    path = tmp_path / "alive"
    make(UuidKey, 1)
    jobs(1)
    settings = {"DJANGO_SETTINGS_MODULE": "tests.throttling.worker_settings"}
    start_worker("--health-file", str(path), "--in-process", **settings)
    wait_until(Throttle.objects.exists, 60)
    for _ in range(2):
        assert is_touched_again(path)
    assert states() == {"open": 1}


@real
def test_a_handler_that_has_overrun_lets_it_age(start_worker: Start, tmp_path: Path) -> None:
    """While another row has its grace period the process is there still, and is not well."""
    path = tmp_path / "alive"
    worker = start_worker(
        *("--health-file", str(path), "--in-process", "--threads", "2", "--grace", "50"),
        model="testapp.Job testapp.TextKey",
        TASKCLAIM_TEST_TIMEOUT="1",
    )
    wait_until(lambda: touched(path), 30)
    TextKey.objects.create(key="slow")
    wait_until(lambda: TextKey.objects.progress().processing)
    jobs(1, "sleep:60")
    wait_until(lambda: grows_old(path, 4.5), 15, "nobody touches it")
    assert worker.process.poll() is None
    assert states() in ({"processing": 1}, {"failed": 1}, {"open": 1})


@real
@pytest.mark.parametrize("way", ["refuse", "hang"])
@pytest.mark.skipif(connection.vendor == "sqlite", reason="needs a server that can be away")
def test_a_database_that_is_away_is_no_illness(
    start_worker: Start, tmp_path: Path, way: str
) -> None:
    """A restart of the worker would mend nothing: the file is touched as long as the outage lasts, and after it.

    A server that is silent for longer than a hang and a lease is away, too, and the same process outlives that.
    """
    path = tmp_path / "alive"
    settings = connections["default"].settings_dict
    with ProxyProcess(settings["HOST"], int(settings["PORT"])) as proxy:
        there = settings | {"HOST": "127.0.0.1", "PORT": proxy.port}
        worker = start_worker(
            *("--health-file", str(path), "--in-process", "--lease", "5"),
            DATABASE_URL=servers.url_of(there),
        )
        # From this row on a thread counts as hung after 6 s.
        jobs(1, "hang:nobody")
        wait_until(lambda: worker.events("completed"), 30)
        proxy.tell(way)
        end = time.monotonic() + 20
        while time.monotonic() < end:
            assert is_touched_again(path)
        proxy.tell("pass")
        jobs(1)
        wait_until(lambda: len(worker.events("completed")) == 2, 15, f"{worker.events()[-12:]}")
        assert is_touched_again(path)


# Without processes


class Thread:
    """What is asked of claimer and service."""

    def __init__(self) -> None:
        self.alive, self.last_turn, self.ident = True, 0.0, 0
        self.leaving, self.overrun = threading.Event(), threading.Event()

    def is_alive(self) -> bool:
        return self.alive


class Crew:
    def __init__(self) -> None:
        self.claimer, self.service = Thread(), Thread()
        self.silences = [Silence(self.claimer), Silence(self.service)]

    def hung(self) -> list[Thread]:
        return [one.thread for one in self.silences if one.hangs()]


@pytest.fixture
def turn_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let the clock of the threads go on by so many seconds, of which each look sees one."""
    now = [1000.0]
    monkeypatch.setattr(health, "clock", lambda: now[0])

    def turn(seconds: float, looks: Callable[[], Any] = lambda: None) -> None:
        for _ in range(int(seconds)):
            now[0] += 1
            looks()

    return turn


def test_who_goes_on(turn_clock: Callable[..., None]) -> None:
    """A silent thread hangs, unless it is about to end as asked."""
    crew: Any = Crew()
    turn_clock(health.HUNG_AFTER, crew.hung)
    assert goes_on(crew)
    crew.service.last_turn += 1
    turn_clock(1, crew.hung)
    assert not goes_on(crew)
    crew.claimer.alive = False
    assert not goes_on(crew)
    crew.claimer.leaving.set()
    assert goes_on(crew)
    turn_clock(health.HUNG_AFTER + 1, crew.hung)
    assert not goes_on(crew)
    crew.service.last_turn += 1
    assert goes_on(crew)
    crew.service.overrun.set()
    assert not goes_on(crew)
    crew.service.overrun.clear()
    assert goes_on(crew)
    crew.service.alive = False
    assert not goes_on(crew)


def test_a_frozen_process_hangs_nobody(turn_clock: Callable[..., None]) -> None:
    """Where the thread that looks stood still, the others did, too."""
    thread = Thread()
    silence = Silence(thread)
    turn_clock(3600)
    assert not silence.hangs()
    turn_clock(health.HUNG_AFTER + 1, silence.hangs)
    assert silence.hangs()
    assert not silence.hangs(5)


@pytest.mark.parametrize("asks", [True, False])
def test_a_thread_that_waits_for_its_database_does_not_hang(
    turn_clock: Callable[..., None], asks: bool
) -> None:
    """What runs in its place after a statement may hang: a hook, a receiver, a function of a policy."""
    asked, end = threading.Event(), threading.Event()

    def wait(*args: Any) -> int:
        asked.set()
        return int(end.wait(120))

    def ask() -> None:
        # As a driver written in C: its caller in django.db is the innermost frame. And a function that it calls back.
        scope: dict[str, Any] = {"__name__": "django.db.backends.any", "wait": wait, "lock": lock}
        call = "asked(), lock.acquire()" if asks else "wait()"
        exec(f"def execute(asked): {call}", scope)
        scope["execute"](asked.set)

    lock = threading.Lock()
    lock.acquire()
    thread = threading.Thread(target=ask, daemon=True)
    thread.last_turn = 0.0  # type: ignore[attr-defined]
    thread.start()
    silence = Silence(thread)
    assert asked.wait(60)
    wait_until(lambda: health._waits_for_database(thread) is asks)
    turn_clock(health.HUNG_AFTER + 1, silence.hangs)
    assert silence.hangs() is not asks
    end.set()
    lock.release()


def test_a_file_that_is_somebodys_is_refused(tmp_path: Path) -> None:
    """What is not empty, or no file, is left as it is."""
    precious = tmp_path / "manage.py"
    precious.write_text("precious")
    for path in (precious, tmp_path, Path("/dev/null")):
        with pytest.raises(FileExistsError):
            HealthFile(str(path)).prepare()
    assert precious.read_text() == "precious"
    with pytest.raises(OSError, match="No such file"):
        HealthFile(str(tmp_path / "missing" / "file")).prepare()
    free = tmp_path / "alive"
    HealthFile(str(free)).prepare()
    assert not free.exists()


def test_a_file_that_can_no_longer_be_touched_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    file = HealthFile(str(folder / "alive"))
    file.prepare()
    folder.rmdir()
    file.touch()
    file.remove()
    assert "touching the health file" in caplog.text


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_processes_have_titles_where_setproctitle_is_installed(start_worker: Start) -> None:
    pytest.importorskip("setproctitle")
    jobs(2, "sleep:60")
    worker = start_worker("--processes", "2", "--batch-size", "1", "--grace", "0.1")

    def titles() -> list[str]:
        lines = [Path(f"/proc/{pid}/cmdline") for pid in (worker.pid, *worker.children())]
        return sorted(one.read_bytes().strip(b"\0").decode() for one in lines)

    expected = [
        "claimworker: child worker-1, testapp.Job",
        "claimworker: child worker-2, testapp.Job",
        "claimworker: supervisor, testapp.Job",
    ]
    wait_until(lambda: titles() == expected)
