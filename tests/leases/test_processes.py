"""Named leases between real processes: killed, frozen, and with clocks that are wrong."""

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta

import pytest

from django_taskclaim import named_lease
from tests.freezing import freeze
from tests.leases.support import is_held, stored
from tests.processes import Partner, wrong_clock
from tests.testapp.models import Ledger, Photo
from tests.worker.conftest import wait_until

Start = Callable[..., Partner]


@pytest.fixture
def start(process_env: dict[str, str]) -> Iterator[Start]:
    """Start a process of ``tests.leases.probe``; what still runs at the end of the test is killed."""
    Photo.objects.create()
    with ExitStack() as started:

        def begin(*words: object, **env: str) -> Partner:
            partner = Partner(process_env | env, "tests.leases.probe", *words)
            return started.enter_context(partner)

        yield begin


@pytest.mark.promise(1, 3)
def test_one_process_at_a_time_is_inside_while_another_is_frozen(start: Start) -> None:
    """No increment is lost; the frozen one learns after its thaw that the lease has passed on, and writes nothing."""
    frozen = start("hold", "counter", 2)
    token = frozen.heard()["token"]
    # What they do between check and write is fenced by nothing, so none of their leases may end there.
    counting = [start("count", "counter", 30) for _ in range(3)]
    freeze(frozen.process.pid)
    wait_until(lambda: stored("counter").iteration > token[1] + 10)
    frozen.process.send_signal(signal.SIGCONT)
    frozen.tell()
    thawed = frozen.heard()
    assert (thawed["lost"], thawed["wrote"]) == (True, 0)
    assert "'counter': the lease" in thawed["left"]
    seen = stored("counter").iteration
    wait_until(lambda: stored("counter").iteration > seen + 5)
    for probe in counting:
        probe.tell()
    done = sum(probe.heard()["done"] for probe in counting)
    assert Photo.objects.get().counter == Ledger.objects.count() == done >= 10
    assert not is_held("counter")


@pytest.mark.promise(7)
def test_a_dead_holder_keeps_others_out_for_its_lease_and_no_longer(start: Start) -> None:
    dead = start("hold", "report", 10)
    dead.heard()
    first = stored("report")
    # It renews as long as it lives.
    wait_until(lambda: stored("report").expires_at > first.expires_at)
    dead.process.kill()
    dead.process.wait(120)
    ends = stored("report").expires_at
    with named_lease("report", wait=120):
        assert stored("report").claimed_at >= ends


@pytest.mark.promise(6)
@pytest.mark.parametrize("days", [1, pytest.param(-1, marks=pytest.mark.once)])
def test_a_process_with_a_wrong_clock_does_what_the_others_do(start: Start, days: int) -> None:
    """It neither enters a lease that is held nor keeps its own for longer or shorter than it should."""
    with named_lease("taken", lease=600):
        wrong = start("hold", "report", 8, "taken", **wrong_clock(days * 86400))
        assert wrong.heard()["entered"] is False
    first = stored("report")
    # Renewed meanwhile, perhaps.
    assert timedelta(seconds=7) < first.expires_at - first.claimed_at < timedelta(hours=1)
    wait_until(lambda: stored("report").expires_at > first.expires_at, what="it renews its lease")
    assert stored("report").expires_at - first.expires_at < timedelta(hours=1)
    wrong.tell()
    assert wrong.heard()["wrote"] == 1
    assert not is_held("report")
