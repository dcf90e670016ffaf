"""Named leases in async code."""

import asyncio
import threading
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import SynchronousOnlyOperation

from django_taskclaim import named_lease, synchronized
from django_taskclaim.exceptions import ClaimLost, LeaseUnavailable
from django_taskclaim.leases import LeaseRows, blocks
from tests.behaviour.support import DEADLINE, wait_for
from tests.leases.support import (
    held_by_another_thread,
    is_held,
    renewer_threads,
    set_expiry,
    stored,
)

pytestmark = pytest.mark.django_db(transaction=True)


@async_to_sync
async def use() -> None:
    async with named_lease("report", lease=8) as held:
        assert await sync_to_async(is_held)("report")
        before = held.renewed
        while held.renewed == before:
            await asyncio.sleep(0.05)
        assert await held.acheck()
        assert await held.arenew()
        assert not held.lost
    assert held.lost


def test_a_block_holds_the_lease_is_renewed_and_gives_it_back() -> None:
    use()
    assert not is_held("report")
    wait_for(lambda: not renewer_threads())


def test_a_task_that_waits_blocks_no_other() -> None:
    """Tasks of one loop keep each other out, and one gets in when the other leaves."""

    @async_to_sync
    async def run() -> list[str]:
        told: list[str] = []
        first_in, refused = asyncio.Event(), asyncio.Event()

        async def first() -> None:
            async with named_lease("report"):
                first_in.set()
                await refused.wait()
                await asyncio.sleep(0.3)
                told.append("first")

        async def second() -> None:
            await first_in.wait()
            with pytest.raises(LeaseUnavailable):
                async with named_lease("report"):
                    pytest.fail("entered")
            refused.set()
            async with named_lease("report", wait=DEADLINE):
                told.append("second")

        await asyncio.gather(first(), second())
        return told

    assert run() == ["first", "second"]


def test_a_loss_is_raised() -> None:
    @async_to_sync
    async def run() -> None:
        async with named_lease("report", lease=600) as held:
            await sync_to_async(set_expiry)("report", "-1 SECOND")
            async with named_lease("report"):
                with pytest.raises(ClaimLost):
                    await held.acheck()

    with pytest.raises(ClaimLost):
        run()


def test_an_async_function_is_synchronized() -> None:
    @synchronized(lambda number: f"report:{number}")
    async def report(number: int) -> bool:
        return await sync_to_async(is_held)(f"report:{number}")

    assert async_to_sync(report)(7)
    with held_by_another_thread("report:7"), pytest.raises(LeaseUnavailable):
        async_to_sync(report)(7)


def test_a_plain_block_in_async_code_is_refused_by_django() -> None:
    @async_to_sync
    async def run() -> None:
        with named_lease("report"):
            pytest.fail("entered")

    with pytest.raises(SynchronousOnlyOperation):
        run()


def test_a_cancelled_task_gives_the_lease_back() -> None:
    @async_to_sync
    async def run() -> None:
        entered = asyncio.Event()

        async def hold() -> None:
            async with named_lease("report", lease=60):
                entered.set()
                await asyncio.sleep(DEADLINE)

        task = asyncio.create_task(hold())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run()
    wait_for(lambda: not is_held("report"))
    wait_for(lambda: not renewer_threads())


def test_a_task_cancelled_while_it_takes_the_lease_keeps_nobody_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread that takes it cannot be cancelled, so what it takes is given back."""
    taking, go_on = threading.Event(), threading.Event()
    usual = blocks.take

    def slow(*args: Any) -> Any:
        taking.set()
        assert go_on.wait(DEADLINE)
        return usual(*args)

    monkeypatch.setattr(blocks, "take", slow)

    @async_to_sync
    async def run() -> None:
        async def hold() -> None:
            async with named_lease("report", lease=60):
                pytest.fail("entered")

        task = asyncio.create_task(hold())
        while not taking.is_set():
            await asyncio.sleep(0.01)
        task.cancel()
        asyncio.get_running_loop().call_later(0.2, go_on.set)
        with pytest.raises(asyncio.CancelledError):
            await task

    run()
    assert stored("report").iteration > 0
    wait_for(lambda: not is_held("report"))
    assert renewer_threads() == []
    assert LeaseRows.on("default").free().filter(name="report").exists()
