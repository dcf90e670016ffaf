"""`manage.py demo`: the whole story in about a minute."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.core.management.color import no_style
from django.db import connection
from django.urls import reverse
from rich.console import Console
from rich.live import Live

from django_taskclaim.models import WorkerProcess
from django_taskclaim.states import Status
from django_taskclaim.switch import resume
from photos.demo.account import Account
from photos.demo.display import clock, picture
from photos.demo.site import serving
from photos.models import Photo

MODEL = "photos.Photo"
OUTPUT = settings.VAR_DIR / "claimworker.log"


class Command(BaseCommand):
    """Parse, run the story, report."""

    help = (
        "Make rows, start worker processes that download and describe a picture for each, and look on. "
        "Runs on SQLite, or on the database that DATABASE_URL names; the rows of an earlier demo "
        "are replaced. Ends with an account; the exit code is 1 if that does not add up."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """All have defaults."""
        parser.add_argument("--rows", type=int, default=5_000, help="how many rows (5000)")
        parser.add_argument("--workers", type=int, default=3, help="how many worker processes (3)")
        parser.add_argument(
            "--kill",
            action="store_true",
            help="kill a worker process with SIGKILL half-way; its rows come back by themselves",
        )
        parser.add_argument(
            "--stay",
            action="store_true",
            help="go on serving the control room after the account, until Ctrl-C",
        )

    def handle(self, *, rows: int, workers: int, kill: bool, stay: bool, **options: Any) -> None:
        """Run the demo; CommandError where it cannot, or where the account does not add up."""
        if rows < 1 or workers < 1:
            raise CommandError("--rows and --workers are whole numbers from 1.", returncode=2)
        # Asked to end, a demo stops its workers first, as on Ctrl-C.
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.default_int_handler)
        try:
            with exclusively(settings.RECORDS), serving() as site:
                self.run(rows, workers, site, kill=kill, stay=stay)
        except KeyboardInterrupt:
            raise CommandError(
                "Stopped; the workers gave back the rows that they had not started.",
                returncode=130,
            ) from None

    def run(self, rows: int, workers: int, site: str, *, kill: bool, stay: bool) -> None:
        """Prepare, play, account."""
        prepare(rows, site)
        room = site + reverse("admin:taskclaim_control_changelist", args=["photos.photo"])
        self.announce(rows, workers, room)
        account, console = Account(rows), Console(highlight=False)
        # The terminal writes ^C behind the last line.
        console.width = min(100, console.width - 3)
        with Live(console=console, auto_refresh=False) as live:
            with claimworker(workers) as worker:
                play(account, worker, live, kill=kill)
            problems = account.settle()
            if worker.returncode:
                problems.append(f"The workers ended with code {worker.returncode}; see {OUTPUT}.")
            live.update(picture(account, problems), refresh=True)
        if not console.is_terminal:
            # The picture ends without a line break there.
            self.stdout.write("")
        if stay:
            self.stdout.write(f"Open until Ctrl-C: {room}")
            self.stdout.flush()
            with suppress(KeyboardInterrupt):
                signal.pause()
        if problems:
            raise CommandError("The account does not add up.")

    def announce(self, rows: int, workers: int, room: str) -> None:
        """Say what the demo is about, and how to join in."""
        version = ".".join(map(str, connection.get_database_version()))
        manage = f"{relative(Path(sys.executable))} {relative(settings.BASE_DIR / 'manage.py')}"
        same = " with the same DATABASE_URL" if "DATABASE_URL" in os.environ else ""
        self.stdout.write(
            f"{rows:,} rows, {workers} worker processes, {connection.display_name} {version}\n"
            f"To pause it and let it go on, from another terminal{same}:\n"
            f"  {manage} claimpause {MODEL}\n"
            f"  {manage} claimresume {MODEL}\n"
            f"The control room (demo, demo):\n  {room}\n"
            f"The log of the workers: {relative(OUTPUT)}\n"
        )
        self.stdout.flush()


def prepare(rows: int, site: str) -> None:
    """Make the tables, the user and the rows; what an earlier demo has left goes."""
    call_command("migrate", verbosity=0)
    if not User.objects.filter(username="demo").exists():
        User.objects.create_superuser("demo", password="demo")
    WorkerProcess.objects.filter(labels=MODEL).delete()
    # Keys begin at 1 again, so that each is the number of its picture.
    table = Photo._meta.db_table
    empty = connection.ops.sql_flush(no_style(), [table], reset_sequences=True)
    connection.ops.execute_sql_flush(empty)
    numbers = range(1, rows + 1)
    Photo.objects.bulk_create(Photo(url=f"{site}/pictures/{n}.jpg") for n in numbers)
    resume(Photo)


@contextmanager
def claimworker(processes: int) -> Iterator[subprocess.Popen[bytes]]:
    """The worker as one starts it in production; it stops at the end of the block."""
    manage = [sys.executable, str(settings.BASE_DIR / "manage.py")]
    # The time is for a demo that dies without stopping it.
    options = [f"--processes={processes}", "--threads=4", "--max-time=6h"]
    with OUTPUT.open("wb") as output:
        worker = subprocess.Popen(
            [*manage, "claimworker", MODEL, *options],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Ctrl-C in the terminal reaches the demo alone, which then stops the worker.
            start_new_session=True,
        )
    try:
        yield worker
    finally:
        worker.terminate()
        worker.wait()


def play(account: Account, worker: subprocess.Popen[bytes], live: Live, *, kill: bool) -> None:
    """Look on until every row is finished, and kill a process half-way if asked to."""
    while account.finished < account.made:
        account.look()
        live.update(picture(account), refresh=True)
        if kill and not account.killed and account.finished * 2 >= account.made:
            kill_one(account, live.console)
        if worker.poll() is not None:
            said = OUTPUT.read_text(errors="replace")[-2000:]
            raise CommandError(f"The workers ended with code {worker.returncode}:\n{said}")
        time.sleep(0.25)


def kill_one(account: Account, console: Console) -> None:
    """SIGKILL the process that holds the most rows."""
    held = {name: states[Status.PROCESSING] for name, states in account.processes.items()}
    name = max(held, key=lambda name: held[name])
    if held[name]:
        with suppress(ProcessLookupError):
            os.kill(int(name.rpartition(":")[2]), signal.SIGKILL)
        account.killed = name
        when = clock(account.elapsed)
        console.print(f"{when}  {name} was killed with SIGKILL, {held[name]} rows in its hands")


@contextmanager
def exclusively(records: Path) -> Iterator[None]:
    """Begin new records; CommandError while another demo writes them."""
    with records.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CommandError("Another demo is running in this checkout.") from None
        file.truncate(0)
        yield


def relative(path: Path) -> Path:
    """The path as one would type it here."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
