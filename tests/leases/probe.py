"""What the processes of ``test_processes`` do: ``python -m tests.leases.probe <act> <argument> …``.

A line on standard output tells how far an act is, a line on standard input lets it go on.
"""

# ruff: noqa: E402 - models can be imported only once Django is set up

import random
import select
import sys
import time
from contextlib import suppress

import django

django.setup()

from django.db import transaction

from django_taskclaim import named_lease
from django_taskclaim.exceptions import ClaimLost, LeaseUnavailable
from tests.processes import say
from tests.testapp.models import Ledger, Photo


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
    say({"done": done})


def hold(name: str, lease: str, taken: str = "") -> None:
    """Hold the lease until a line comes, then increment the counter if the lease is still held.

    Before that, ask for the lease *taken*, and say whether this process got it.
    """
    entered, lost, wrote, left = False, False, 0, "well"
    if taken:
        with suppress(LeaseUnavailable), named_lease(taken):
            entered = True
    try:
        with named_lease(name, lease=float(lease), wait=60) as held:
            photo = Photo.objects.get()
            say({"token": held.token, "entered": entered})
            sys.stdin.readline()
            lost = held.lost
            if not lost:
                wrote = increment(photo)
    except ClaimLost as error:
        left = str(error)
    say({"lost": lost, "wrote": wrote, "left": left})


def increment(photo: Photo) -> int:
    """Write what was read before, plus one: wrong if two did it at once. The ledger counts the calls."""
    with transaction.atomic():
        Ledger.objects.create(model="photo", key=str(photo.pk))
        return Photo.objects.filter(pk=photo.pk).update(counter=photo.counter + 1)


if __name__ == "__main__":
    {"count": count, "hold": hold}[sys.argv[1]](*sys.argv[2:])
