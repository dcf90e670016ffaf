"""`manage.py demo`: the whole story in about a minute."""

import fcntl
import os
import signal
import sys
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import connection
from rich.console import Console

from django_taskclaim.management.display import Onlooker
from photos.demo.pictures import PictureBook
from photos.demo.report import tell
from photos.demo.site import admin_site, stay
from photos.demo.staff import make_superuser
from photos.demo.story import Plan, StoryBroken, staged
from photos.demo.workers import MODEL

INTERRUPTED = 130


class Command(BaseCommand):
    """Parse, run the story, report."""

    help = (
        "Make rows, start workers that download and describe a picture for each, and look on. "
        "Runs on SQLite, or on the database that DATABASE_URL names; the rows of an earlier demo "
        "are replaced. Ends with an account; the exit code is 1 if that does not add up."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """All have defaults."""
        parser.add_argument("--rows", type=positive, default=5_000, help="how many rows (5000)")
        parser.add_argument("--workers", type=positive, default=3, help="how many workers (3)")
        parser.add_argument(
            "--kill",
            action="store_true",
            help="kill a worker with SIGKILL half-way; its rows come back when the lease is over",
        )
        parser.add_argument(
            "--seed",
            type=int,
            default=1,
            help="settles the pictures and which URLs cause trouble (1)",
        )
        parser.add_argument(
            "--stay",
            action="store_true",
            help="go on serving the control room after the account, until Ctrl-C",
        )

    def handle(
        self, *, rows: int, workers: int, kill: bool, seed: int, stay: bool, **options: Any
    ) -> None:
        """Run the demo; CommandError where it cannot, or where the account does not add up."""
        if kill and workers < 2:
            raise CommandError(
                "--kill needs at least two workers: the others carry on.", returncode=2
            )
        plan = Plan(rows=rows, workers=workers, kill=kill, seed=seed, folder=settings.VAR_DIR)
        # Asked to end, a demo stops its workers first, as on Ctrl-C.
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, interrupt)
        try:
            with alone(plan.folder):
                self.run(plan, stays=stay)
        except StoryBroken as broken:
            raise CommandError(str(broken)) from broken
        except KeyboardInterrupt:
            raise CommandError(
                "Stopped; the workers gave back the rows that they had not started.",
                returncode=INTERRUPTED,
            ) from None

    def run(self, plan: Plan, *, stays: bool) -> None:
        """Prepare, play, account."""
        call_command("migrate", verbosity=0)
        make_superuser()
        self.paint(plan.book)
        with admin_site() as room:
            self.announce(plan, room)
            with staged(plan) as story, onlooking():
                elapsed = story.play()
                account = story.account()
            again = plan.folder / "claimed-again.csv"
            account.write_again(again)
            tell(account, elapsed=elapsed, again=again, console=Console())
            if stays:
                self.stdout.write(f"The control room stays open at {room} until Ctrl-C.")
                stay()
        if account.problems():
            raise CommandError("The account does not add up.")

    def paint(self, book: PictureBook) -> None:
        """Make the pictures, with a word about it as it takes some seconds the first time."""
        self.stdout.write(f"Painting {book.size:,} pictures in {book.folder} …")
        painted = book.paint()
        self.stdout.write(f"{painted:,} new, {book.size - painted:,} were there.")

    def announce(self, plan: Plan, room: str) -> None:
        """Say what the demo is about, and how to join in."""
        version = ".".join(map(str, connection.get_database_version()))
        manage = f"{relative(Path(sys.executable))} {relative(settings.BASE_DIR / 'manage.py')}"
        same = "   (with the same DATABASE_URL)" if "DATABASE_URL" in os.environ else ""
        self.stdout.write(
            f"{plan.rows:,} pictures, {plan.workers} workers, {connection.display_name} {version}\n"
            f"To pause, from another terminal:  {manage} claimpause {MODEL}{same}\n"
            f"To go on:                         {manage} claimresume {MODEL}{same}\n"
            f"The control room (demo, demo):    {room}"
        )
        self.stdout.flush()


@contextmanager
def onlooking() -> Iterator[None]:
    """Have the progress drawn as `claimworker --drain` has it."""
    onlooker = Onlooker(labels=[MODEL], using="default", before={MODEL: [0, 0]}, no_color=False)
    try:
        yield
    finally:
        onlooker.end()


def relative(path: Path) -> Path:
    """The path as one would type it here."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """CommandError where another demo uses the folder: it would lose its rows to this one."""
    with (folder / "demo.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CommandError(f"Another demo is running in {folder}.") from None
        yield


def positive(text: str) -> int:
    """A whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"expected a whole number from 1, not {text!r}")
    return int(text)


def interrupt(number: int, frame: FrameType | None) -> None:
    """Treat a signal as Ctrl-C."""
    raise KeyboardInterrupt
