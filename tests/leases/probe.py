"""What the processes of ``test_processes`` do: ``python -m tests.leases.probe <act> <argument> …``.

A line on standard output tells how far an act is, a line on standard input lets it go on.
"""

# ruff: noqa: E402 - models can be imported only once Django is set up

import json
import os
import random
import select
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import django

django.setup()

from django.db import connections, transaction
from django.utils import timezone

from django_taskclaim import named_lease
from django_taskclaim.exceptions import ClaimLost, LeaseUnavailable
from tests.testapp.models import Ledger, Photo


def say(**facts: Any) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def count(name: str, lease: str) -> None:
    """Increment the counter again and again until a line comes."""
    done = 0
    while not select.select([sys.stdin], [], [], random.uniform(0, 0.05))[0]:
        # On a busy machine a lease may be lost; then nothing is written.
        with suppress(ClaimLost), named_lease(name, lease=float(lease), wait=60) as held:
            photo = Photo.objects.get()
            time.sleep(random.uniform(0, 0.02))
            held.check()
            done += increment(photo)
    say(done=done)


def hold(name: str, lease: str) -> None:
    """Hold the lease until a line comes, then increment the counter if the lease is still held."""
    lost, wrote, left = False, 0, "well"
    try:
        with named_lease(name, lease=float(lease), wait=60) as held:
            photo = Photo.objects.get()
            say(token=held.token)
            sys.stdin.readline()
            lost = held.lost
            if not lost:
                wrote = increment(photo)
    except ClaimLost as error:
        left = str(error)
    say(lost=lost, wrote=wrote, left=left)


def increment(photo: Photo) -> int:
    """Write what was read before, plus one: wrong if two did it at once. The ledger counts the calls."""
    with transaction.atomic():
        Ledger.objects.create(model="photo", key=str(photo.pk))
        return Photo.objects.filter(pk=photo.pk).update(counter=photo.counter + 1)


def wait_for_renewal(held: Any) -> None:
    before = held.renewed
    while held.renewed == before and not held.lost:
        time.sleep(0.05)


def fork(name: str, lease: str) -> None:
    """Fork inside the block: the child sees a lost lease, leaves the block, and holds one of its own."""
    block = named_lease(name, lease=float(lease))
    held = block.__enter__()
    assert held.renew()
    # Sessions are not shared with a child.
    connections.close_all()
    child = os.fork()
    if not child:
        lost, left = held.lost, "well"
        try:
            block.__exit__(None, None, None)
        except ClaimLost as error:
            left = str(error)
        with named_lease(f"{name}'s child", lease=float(lease)) as own:
            wait_for_renewal(own)
            say(lost=lost, left=left, own=own.check())
        os._exit(0)
    os.waitpid(child, 0)
    wait_for_renewal(held)
    say(parent=held.check())
    block.__exit__(None, None, None)


def wrong_clock(name: str, days: str) -> None:
    """Ask for a lease that is held, and hold another one, in a process whose clock is wrong by days."""
    shift = timedelta(days=float(days))
    real_time = time.time
    time.time = lambda: real_time() + shift.total_seconds()  # type: ignore[assignment]

    class Shifted(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + shift

    timezone.datetime = Shifted  # type: ignore[attr-defined]
    assert abs(timezone.now() - datetime.now(timezone.get_default_timezone())) > shift / 2
    holder = ""
    with suppress(LeaseUnavailable), named_lease(name):
        holder = "this process"
    with named_lease(f"{name} of {days}", lease=8) as held:
        wait_for_renewal(held)
        say(entered=holder, lost=held.lost, remaining=held.remaining().total_seconds())
        sys.stdin.readline()


ACTS: dict[str, Callable[..., None]] = {
    function.__name__: function for function in (count, hold, fork, wrong_clock)
}

if __name__ == "__main__":
    ACTS[sys.argv[1]](*sys.argv[2:])
