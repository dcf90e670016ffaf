"""Claim rows of the given models and run their handlers on them, until told to stop.

Run it on as many machines as you like. A worker that dies, hangs or is cut off loses its rows when their lease
is over, and others do them.

Examples:
  manage.py claimworker                                   every model that has a handler, until SIGTERM or Ctrl-C
  manage.py claimworker photos.Photo --processes 4 --threads 2
  manage.py claimworker photos.Photo mail.Outbox --drain  until nothing is left, for a Kubernetes Job
  manage.py claimworker mail.Outbox --in-process --drain  from cron, one process
  manage.py claimworker mail.Outbox --in-process --max-rows 500 --drain
  manage.py claimworker photos.Photo --filter country=NZ --filter width__isnull=true

Signals:
  SIGTERM or SIGINT: claim nothing more, give back what has not started, let running rows go on for the grace period.
  A second one: give everything back and leave within 5 seconds.

Exit codes:
  0  ended as asked: stopped, drained, or a limit of rows or time reached
  1  a running handler was cut short, processes could not be kept alive, or tables are not there yet
  2  wrong usage
  3  a drain ended with work left: the model is paused or throttled, or the database refuses to write the last rows

"""

import math
import os
import signal
import sys
import threading
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from django.db import connections

from django_taskclaim import conf
from django_taskclaim.checks import check_project
from django_taskclaim.claim import clock
from django_taskclaim.connecting import work_in_schema
from django_taskclaim.formatting import counted, listed
from django_taskclaim.handlers import models_with_handler
from django_taskclaim.management.base import (
    ClaimCommand,
    Model,
    UsageError,
    duration,
    lacking,
    reader,
    refuse,
    whole_number,
)
from django_taskclaim.switch import holds
from django_taskclaim.worker.options import HOW_TO_HANDLE, ExitCode, WorkerOptions
from django_taskclaim.worker.process import found_unless_stopped, run_in_process
from django_taskclaim.worker.records import log_to_console
from django_taskclaim.worker.stop_signals import STOP_SIGNALS, leave


class Command(ClaimCommand):
    takes = ("*", "what to claim from (every model that has a handler)")
    filters = "claim only rows"
    nothing = f"No such model has a handler: {HOW_TO_HANDLE}."

    def add_arguments(self, parser: ArgumentParser) -> None:
        number: dict[str, Any] = {"type": reader(conf.whole_number(most=1000)), "metavar": "N"}
        seconds: dict[str, Any] = {"type": duration, "metavar": "SECONDS"}
        add = parser.add_argument
        super().add_arguments(parser)
        one_of = parser.add_mutually_exclusive_group().add_argument
        one_of("--processes", **number, default=1, help="worker processes (1)")
        text = "no supervisor and no child: for cron, debuggers and Windows"
        one_of("--in-process", action="store_true", help=text)
        add("--threads", **number, default=1, help="handler threads in each process (1)")
        text = "rows of one claim (the handler's, or about a second's)"
        add("--batch-size", type=reader(conf.BATCH_SIZE), metavar="N", help=text)
        add("--lease", **seconds, help="how long a claim lasts unless renewed (60)")
        add("--poll", **seconds, help="pause between looks when nothing is due (1)")
        add("--grace", **seconds, help="how long running rows may go on after a signal (8)")
        add("--drain", action="store_true", help="end once nothing is open or processing")
        add("--max-rows", type=whole_number, metavar="N", help="end after N rows, per process")
        add("--max-time", **seconds, help="end after this long")
        text = "first part of the holder's name in the table (worker)"
        add("--name", type=holder_name, default="worker", help=text)
        text = "touch this file every few seconds while all is well, for a liveness probe"
        add("--health-file", type=writable_file, metavar="PATH", help=text)

    def every_model(self, database: str | None) -> list[Model]:
        models = models_with_handler()
        return [model for model in models if database is None or holds(database, model)]

    def run_from_argv(self, argv: list[str]) -> None:
        # From the first line to the last a stop is heeded, and kills nobody: the code that waits for signals takes it.
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        super().run_from_argv(argv)

    def handle(self, *, models: list[Any], in_process: bool, **options: Any) -> None:
        if not in_process and not hasattr(signal, "pthread_sigmask"):
            text = f"This platform ({sys.platform}) supervises no processes; add --in-process."
            raise UsageError(text)
        if threading.current_thread() is not threading.main_thread():
            text = "A worker handles signals, so it needs the main thread of its process."
            raise UsageError(text)
        serious = (one for one in check_project() if one.is_serious() and not one.is_silenced())
        refuse(one for one in serious if not models or one.obj in (None, *models))
        using, *more = sorted({alias for _, alias in self.where})
        if more:
            text = f"These models live on {using}, {', '.join(more)}"
            raise UsageError(f"{text}; start a worker for each, or name one --database.")
        worker = self._options(in_process, using, options)
        work_in_schema(worker.schema)
        log_to_console(worker.verbosity)
        try:
            worker.handlers()
            # A worker starts although its database is away, but not without its tables.
            refuse(found_unless_stopped(lacking(self.where)), ExitCode.CUT_SHORT)
        except LookupError as error:
            raise UsageError(str(error)) from error
        except RuntimeError as error:
            # The first thread was refused.
            text = f"A worker needs threads: {error}. Use claim_batch() or take(), which need none."
            raise UsageError(text) from error
        if in_process:
            code = run_in_process(worker)
        else:
            # Not importable where the platform has no POSIX signals; --in-process works there.
            from django_taskclaim.worker.supervisor import Supervisor

            self._greet(worker)
            code = Supervisor(worker).run()
        is_ours_alone = getattr(self, "_called_from_command_line", False)
        if in_process and is_ours_alone and code == ExitCode.CUT_SHORT:
            # What still runs must not hold up the end.
            leave(code)
        if code:
            sys.exit(code)

    def _options(self, in_process: bool, using: str, options: Mapping[str, Any]) -> WorkerOptions:
        names, limit = [one.name for one in fields(WorkerOptions)], options["max_time"]
        given = {name: options[name] for name in names if options.get(name)}
        given |= {
            "labels": tuple(dict.fromkeys(model._meta.label for model, _ in self.where)),
            "using": using,
            "filters": tuple(options["filters"]),
            "ends_at": math.inf if limit is None else clock() + limit.total_seconds(),
            # Cron mails all output, so without a supervisor only trouble is shown, unless -v 2 asks for everything.
            "verbosity": 0 if in_process and options["verbosity"] == 1 else options["verbosity"],
            "schema": getattr(connections[using], "schema_name", None),
        }
        return WorkerOptions(**given)

    def _greet(self, worker: WorkerOptions) -> None:
        most = worker.processes * worker.connections
        only = f" where {listed(worker.filters)}" if worker.filters else ""
        self.stdout.write(
            f"Working on {', '.join(worker.labels)}{only} in"
            f" {counted(worker.processes, 'process', 'processes')}"
            f" with {counted(worker.threads, 'thread')} each and at most {most} database connections. Ctrl-C stops."
        )
        self.stdout.flush()


def writable_file(text: str) -> str:
    """Return the full path of a file that can be written, or made, for a handler may change the directory."""
    path = os.path.abspath(text)
    place = path if os.path.exists(path) else os.path.join(os.path.dirname(path), "")
    if "\0" in text or os.path.isdir(path) or not os.access(place, os.W_OK):
        raise ArgumentTypeError(f"{text!r} is no file that can be written; does its folder exist?")
    return path


def holder_name(text: str) -> str:
    """Return the name of a worker, which may not look like a holder's."""
    if not (text and text.isprintable()) or len(text) > 100 or set("#@") & set(text):
        raise ArgumentTypeError(f"1 to 100 printable characters without # and @, not {text!r}")
    return text
