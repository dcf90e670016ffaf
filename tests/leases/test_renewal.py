"""The background that keeps a lease alive, and what a holder hears when it cannot."""

import asyncio
import os
import threading
import warnings
from contextlib import ExitStack, nullcontext, suppress
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connection

from django_taskclaim import named_lease
from django_taskclaim.exceptions import ClaimLost, LeaseUnavailable
from django_taskclaim.models import NamedLease
from tests.leases.support import ends_lost, is_held, renewer_threads, stored
from tests.proxy import HAS_A_SERVER
from tests.querysets.support import DEADLINE, elsewhere, held_open, wait_for
from tests.sessions import end_sessions

pytestmark = pytest.mark.django_db(transaction=True)

needs_server = pytest.mark.skipif(not HAS_A_SERVER, reason="needs sessions on a server")


def wait_for_loss(held: Any) -> None:
    """Wait until the hold knows that it is lost; fail if others could have been in before."""

    def is_lost() -> bool:
        # Asked first: the second answer is the later one, however slow this thread is.
        others_may_be_in = not is_held(held.name)
        assert held.lost or not others_may_be_in, "too late: others may be in by now"
        return bool(held.lost)

    wait_for(is_lost)


def wait_for_renewal(held: Any) -> None:
    before = held.renewed_at
    wait_for(lambda: held.renewed_at > before)


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_blocks_may_last_longer_than_their_lease() -> None:
    """One thread renews the leases of all databases; any thread may use a hold."""
    with ExitStack() as blocks:
        holds = [blocks.enter_context(named_lease(f"report:{n}", lease=10 + n)) for n in range(3)]
        other = blocks.enter_context(named_lease("report", lease=10, using="other"))
        first = stored("report:0")
        end = first.expires_at + (first.expires_at - first.claimed_at)
        wait_for(lambda: stored("report:0").expires_at > end)
        assert len(renewer_threads()) == 1
        for held in (*holds, other):
            assert held.check()
            assert elsewhere(held.check).result(DEADLINE)
        assert is_held("report", using="other")
    wait_for(lambda: not renewer_threads())


@pytest.mark.promise(13)
def test_many_leases_leave_no_connection_file_or_thread_behind() -> None:
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    def use(n: int) -> None:
        for number in range(n):
            with named_lease(f"report:{number % 5}", lease=1) as held:
                wait_for_renewal(held)
        wait_for(lambda: not renewer_threads())

    use(1)
    before = open_files()
    use(20)
    # SQLite keeps a few files for its next connections: as many as were open side by side, and not one for each lease.
    wait_for(lambda: open_files() < before + 10)


@pytest.mark.once
def test_a_forked_process_leaves_a_lease_alone_that_was_lost_before() -> None:
    with ends_lost("report") as held:
        held.renewed_at -= held.lease.total_seconds()
        assert held.lost
        with warnings.catch_warnings(action="ignore"):
            child = os.fork()
        if not child:
            with suppress(BaseException):
                held.__exit__(None, None, None)
            os._exit(0)
        os.waitpid(child, 0)
        assert is_held("report")


@pytest.mark.once
@pytest.mark.promise(14)
def test_a_thread_that_cannot_start_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            named_lease("report").__enter__()
        assert not is_held("report")
    with named_lease("report", lease=2) as held:
        wait_for_renewal(held)


# Trouble


@needs_server
@pytest.mark.promise(12)
def test_sessions_that_the_server_ends_cost_no_lease() -> None:
    """Neither that of the renewer nor that of the caller."""
    with named_lease("report", lease=12) as held:
        for _ in range(2):
            wait_for_renewal(held)
            assert elsewhere(end_sessions).result(DEADLINE) >= 1
        wait_for_renewal(held)
    assert not is_held("report")


def lock() -> None:
    """Lock the lease's row; on SQLite that is the whole database."""
    if connection.features.has_select_for_update:
        list(NamedLease.objects.select_for_update())
    else:
        NamedLease.objects.create(name="another")


@pytest.mark.promise(8)
def test_a_holder_that_cannot_renew_hears_of_it_before_the_lease_ends() -> None:
    """Once lost it stays lost, though nobody else has come."""
    with ends_lost("report", lease=3) as held:
        with held_open(lock):
            wait_for_loss(held)
        with pytest.raises(ClaimLost, match="could not be renewed in time"):
            held.check()
        assert held.lost


def test_a_short_hindrance_costs_no_lease() -> None:
    with named_lease("report", lease=20) as held:
        with held_open(lock):
            wait_for(lambda: held.has_trouble)
        wait_for(lambda: not held.has_trouble)
        assert held.check()


# Named leases in async code


def test_tasks_of_one_loop_keep_each_other_out_and_wait_without_blocking() -> None:
    @async_to_sync
    async def run() -> list[str]:
        seen: list[str] = []
        first_in, refused = asyncio.Event(), asyncio.Event()

        async def first() -> None:
            async with named_lease("report") as held:
                first_in.set()
                assert await sync_to_async(is_held)("report")
                assert await held.acheck()
                await refused.wait()
                seen.append("first")
            assert held.lost

        async def second() -> None:
            await first_in.wait()
            with pytest.raises(LeaseUnavailable):
                async with named_lease("report"):
                    pytest.fail("entered")
            refused.set()
            async with named_lease("report", wait=DEADLINE):
                seen.append("second")

        await asyncio.gather(first(), second())
        return seen

    assert run() == ["first", "second"]
    assert not is_held("report")
    wait_for(lambda: not renewer_threads())


@pytest.mark.parametrize("taking_is_slow", [False, True])
def test_a_cancelled_task_keeps_nobody_out(taking_is_slow: bool) -> None:
    """The thread that takes a lease cannot be cancelled, so what it takes is given back."""
    taking, go_on = threading.Event(), threading.Event()

    def slow(execute: Any, sql: str, *args: Any) -> Any:
        if not taking.is_set():
            taking.set()
            assert go_on.wait(DEADLINE)
        return execute(sql, *args)

    @async_to_sync
    async def run() -> None:
        entered = asyncio.Event()

        async def hold() -> None:
            async with named_lease("report", lease=600):
                entered.set()
                await asyncio.sleep(DEADLINE * 2)

        task = asyncio.create_task(hold())
        while not (entered.is_set() or taking.is_set()):
            await asyncio.sleep(0.01)
        task.cancel()
        asyncio.get_running_loop().call_soon(go_on.set)
        with pytest.raises(asyncio.CancelledError):
            await task

    with connection.execute_wrapper(slow) if taking_is_slow else nullcontext():
        run()
    assert stored("report").iteration > 0
    wait_for(lambda: not is_held("report"))
    wait_for(lambda: not renewer_threads())
