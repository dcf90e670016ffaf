"""``--in-process --drain``: what cron starts on shared hosting, beside itself."""

import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.core.management import CommandError, call_command

from tests.commands import shell
from tests.worker.conftest import jobs, states

DRAIN = ("--in-process", "--drain")

pytestmark = [pytest.mark.once, pytest.mark.django_db(transaction=True, databases="__all__")]


def test_it_is_quiet_unless_something_failed(process_env: dict[str, str]) -> None:
    """Cron mails what is printed: nothing of a good run, and of a bad one each row with its traceback."""
    jobs(3)
    good = shell(process_env, "claimworker", "testapp.Job", *DRAIN)
    assert (good.returncode, good.stdout, good.stderr) == (0, "", "")
    keys = jobs(3, "permanent") + jobs(2, "lookup")
    bad = shell(process_env, "claimworker", "testapp.Job", *DRAIN)
    assert (bad.returncode, bad.stdout) == (0, "")
    assert all(f" ERROR Failed testapp.Job {key}" in bad.stderr for key in keys)
    assert bad.stderr.count("Traceback (most recent call last)") == 5
    assert states() == {"complete": 3, "failed": 5}


def test_the_process_keeps_its_signals_after_a_run() -> None:
    """It may be part of a larger command."""
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    call_command("claimworker", "testapp.Job", *DRAIN)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


@pytest.mark.promise(14)
def test_beside_the_main_thread_it_is_refused() -> None:
    with ThreadPoolExecutor() as pool, pytest.raises(CommandError, match="needs the main thread"):
        pool.submit(call_command, "claimworker", "testapp.Job", *DRAIN).result()


@pytest.mark.promise(14)
def test_without_threads_nothing_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    jobs(1)
    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(CommandError, match=r"needs threads: can't start new thread") as error:
        call_command("claimworker", "testapp.Job", *DRAIN)
    assert error.value.returncode == 2
    assert states() == {"open": 1}
