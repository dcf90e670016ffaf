"""``manage.py claimworker``: run workers until told to stop, or until the work is done."""

import contextlib
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from django.core.checks.messages import ERROR
from django.core.management.base import CommandError
from django.db import Error, connections, router

from django_taskclaim import conf
from django_taskclaim.checks import companions, ranges
from django_taskclaim.checks import handlers as handlers_check
from django_taskclaim.checks import models as models_check
from django_taskclaim.claim import clock
from django_taskclaim.columns import has_ranges
from django_taskclaim.connecting import small_pool, work_in_schema
from django_taskclaim.formatting import counted, first_line, listed
from django_taskclaim.handlers import Handler, models_with_handler
from django_taskclaim.links import is_companion
from django_taskclaim.management.arguments import (
    add_models,
    database_alias,
    duration,
    models_to_claim,
    whole_number,
)
from django_taskclaim.management.base import ClaimCommand, lacking_tables
from django_taskclaim.management.display import ProgressPrinter
from django_taskclaim.monitoring.counts import count_rows
from django_taskclaim.policy import faults, policy_for
from django_taskclaim.switch import holds
from django_taskclaim.throttling.health import health_checks, refusal
from django_taskclaim.worker.child import run_in_process
from django_taskclaim.worker.health import HealthFile
from django_taskclaim.worker.options import ExitCode, WorkerOptions
from django_taskclaim.worker.platforms import lacking, show_title
from django_taskclaim.worker.records import log_to_console
from django_taskclaim.worker.selection import SelectionError
from django_taskclaim.worker.stop_signals import answer_unless_stopped, hold_stop_signals, leave
from django_taskclaim.worker.unmigrated import pending_migrations, wait_until_migrated

T = TypeVar("T")

#: How long a silent database may hold up the start.
PATIENCE = 10.0

#: Errors of checks that keep no worker from its rows: a hidden manager, a link that is not unique.
WORKS_ALL_THE_SAME = ("taskclaim.E015", "taskclaim.E062")


class Command(ClaimCommand):
    """Parse, run, exit with the worker's code."""

    help = """Claim rows of the given models and run their handlers on them, until told to stop.

Run it on as many machines as you like. A worker that dies, hangs or is cut off loses its rows when their lease
is over, and others do them. While migrations of its models' apps or of ours are pending it waits, and says so."""
    epilog = """examples:
  manage.py claimworker                                   every model that has a handler, until SIGTERM or Ctrl-C
  manage.py claimworker photos.Photo --processes 4 --threads 2
  manage.py claimworker photos.Photo mail.Outbox --drain  until nothing is left, for a Kubernetes Job
  manage.py claimworker mail.Outbox --in-process --drain  from cron, one process
  manage.py claimworker mail.Outbox --in-process --once   from cron, one batch
  manage.py claimworker photos.Photo --filter country=NZ --filter width__isnull=true

signals:
  SIGTERM or SIGINT: claim nothing more, give back what has not started, let running rows go on for the grace period.
  A second one: give everything back and leave within 5 seconds.

exit codes:
  0  ended as asked: stopped, drained, or a limit of rows or time reached
  1  a running handler was cut short, or processes could not be kept alive
  2  wrong usage
  3  a drain ended with work left, because the model is paused or throttled"""

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_models(parser, "what to claim from (every model that has a handler)")
        parser.add_argument(
            "--processes", type=whole_number, default=1, metavar="N", help="worker processes (1)"
        )
        parser.add_argument(
            "--threads",
            type=whole_number,
            default=1,
            metavar="N",
            help="handler threads in each process (1)",
        )
        parser.add_argument(
            "--batch-size",
            type=_batch_size,
            metavar="N",
            help="rows claimed at a time, at most (the handler's, or what takes about a second)",
        )
        parser.add_argument(
            "--lease",
            type=duration,
            metavar="SECONDS",
            help="how long a claim lasts unless renewed (60)",
        )
        parser.add_argument(
            "--poll",
            type=duration,
            metavar="SECONDS",
            help="pause between looks when nothing is due (1)",
        )
        parser.add_argument(
            "--grace",
            type=duration,
            metavar="SECONDS",
            help="how long running rows may go on after a signal (8)",
        )
        parser.add_argument(
            "--filter",
            action="append",
            dest="filters",
            metavar="LOOKUP=VALUE",
            help="claim these rows only, country=NZ for example; again for more, app.Model:country=NZ for one model",
        )
        parser.add_argument(
            "--drain", action="store_true", help="end once nothing is open or processing"
        )
        parser.add_argument(
            "--once", action="store_true", help="claim one batch of each model at most, and end"
        )
        parser.add_argument(
            "--max-rows", type=whole_number, metavar="N", help="end after N rows, per process"
        )
        parser.add_argument(
            "--max-time", type=duration, metavar="SECONDS", help="end after this long"
        )
        parser.add_argument(
            "--database",
            type=database_alias,
            metavar="ALIAS",
            help="database to work on (where the router writes the models)",
        )
        parser.add_argument(
            "--name", default="worker", help="first part of the holder's name in the table (worker)"
        )
        parser.add_argument(
            "--health-file",
            metavar="PATH",
            help="touch this file every few seconds while all is well, for a liveness probe",
        )
        parser.add_argument(
            "--in-process",
            action="store_true",
            help="no supervisor and no child: for cron, debuggers and Windows",
        )

    def run_from_argv(self, argv: list[str]) -> None:
        # From the first line to the last a stop is heeded, and kills nobody: whoever waits for signals takes it.
        hold_stop_signals()
        super().run_from_argv(argv)

    def handle(self, *, models: list[Any], in_process: bool, **options: Any) -> None:
        _refuse([f"{found.message} {found.hint}" for found in conf.problems()])
        _refuse_contradictions(in_process, options)
        _refuse(lacking(in_process=in_process, threads=options["threads"]))
        models = models or _all_models(options["database"])
        using = _database(models, options["database"])
        worker = WorkerOptions(
            labels=tuple(dict.fromkeys(model._meta.label for model in models)),
            name=_name(options["name"]),
            using=using,
            processes=1 if in_process else options["processes"],
            threads=options["threads"],
            batch_size=options["batch_size"],
            lease=options["lease"],
            poll=options["poll"] or conf.duration("POLL"),
            grace=options["grace"] or conf.duration("GRACE"),
            drain=options["drain"],
            once=options["once"],
            max_rows=options["max_rows"],
            ends_at=_end(options["max_time"]),
            # Cron mails all output, so without a supervisor only trouble is shown, unless -v 2 asks for everything.
            verbosity=0 if in_process and options["verbosity"] == 1 else options["verbosity"],
            filters=tuple(options["filters"] or ()),
            health_file=options["health_file"],
            schema=getattr(connections[using], "schema_name", None),
        )
        work_in_schema(worker.schema)
        refuse_wrong_handlers(worker)
        _prepare_health_file(worker)
        log_to_console(worker.verbosity)
        if not self._is_migrated(worker):
            sys.exit(ExitCode.WORK_LEFT if worker.drain else ExitCode.ENDED)
        _refuse(self._answer(lambda: missing_in(worker)) or [])
        for sentence in small_pool(worker.using, worker.threads):
            self.stderr.write(self.style.WARNING(sentence))
        if not in_process:
            self._greet(worker)
        if in_process:
            code = run_in_process(worker)
        elif worker.drain and worker.verbosity and self.stdout.isatty():
            code = self._supervise_visibly(worker, no_color=options["no_color"])
        else:
            code = _supervisor(worker).run()
        if code == ExitCode.RECYCLE:
            # Nobody is there to start it anew.
            code = ExitCode.CUT_SHORT
        if in_process and code == ExitCode.CUT_SHORT and self._from_shell:
            # What still runs must not hold up the end.
            leave(code)
        if code:
            sys.exit(code)

    def _greet(self, worker: WorkerOptions) -> None:
        most = worker.processes * worker.connections
        only = f" where {listed(worker.filters)}" if worker.filters else ""
        self.stdout.write(
            f"Working on {', '.join(worker.labels)}{only} in"
            f" {counted(worker.processes, 'process', 'processes')}"
            f" with {counted(worker.threads, 'thread')} each and at most {most} database connections. Ctrl-C stops."
        )
        self.stdout.flush()

    def _supervise_visibly(self, worker: WorkerOptions, *, no_color: bool) -> int:
        """Let another process draw how the work goes on: the supervisor asks no database, and is never held up."""
        before = self._answer(lambda: counted_in(worker))
        printer = ProgressPrinter(
            labels=worker.labels, using=worker.using, before=dict(before or ()), no_color=no_color
        )
        supervisor = _supervisor(worker)
        try:
            return int(supervisor.run())
        finally:
            printer.end(supervisor.signals)

    @property
    def _from_shell(self) -> bool:
        """Whether this process is ours alone, with the stop signals held since its first line."""
        return bool(getattr(self, "_called_from_command_line", False))

    def _is_migrated(self, worker: WorkerOptions) -> bool:
        """Wait while the database lacks migrations; False where the worker's time is over before."""
        return wait_until_migrated(
            lambda: pending_in(worker),
            worker.using,
            ask=lambda question: self._answer(question) or [],
            alive=HealthFile(worker.health_file).touch,
            ends_at=worker.ends_at,
        )

    def _answer(self, question: Callable[[], Sequence[T]]) -> Sequence[T] | None:
        """Return the answer, None of a database that is silent; a stop signal ends a process of our own meanwhile."""
        return answer_unless_stopped(question, PATIENCE) if self._from_shell else question()


def refuse_wrong_handlers(worker: WorkerOptions) -> None:
    """Raise CommandError for models without a handler, filters that make no sense, and handlers that fail every row."""
    try:
        found = worker.handlers()
    except LookupError as error:
        _refuse([str(error)])
    except SelectionError as error:
        _refuse([_ended(f"--filter {error}")])
    else:
        _refuse([text for handler in found for text in why_not_to_start(handler)])


def why_not_to_start(handler: Handler) -> list[str]:
    """Return what would make every claim, or every completion, of these rows an error."""
    model = handler.model
    wrong = [
        *models_check.problems_of(model),
        *handlers_check.problems_of(handler),
        *(companions.problems_of(model) if is_companion(model) else ()),
        *(ranges.problems_of(model) if has_ranges(model) else ()),
    ]
    return [
        f"{found.msg} {found.hint or ''}".rstrip()
        for found in wrong
        if found.level >= ERROR and found.id not in WORKS_ALL_THE_SAME and not found.is_silenced()
    ]


def missing_in(worker: WorkerOptions) -> list[str]:
    """Return what the database lacks for this worker, in sentences.

    A database that does not answer is no reason: the worker waits for it.
    """
    sentences: list[str] = []
    try:
        for handler in worker.handlers():
            with contextlib.suppress(Error):
                sentences += _raised_by_manager(handler)
                sentences += lacking_tables(handler.model, worker.using, whole=True)
                sentences += _refused_checks(handler, worker.using)
    finally:
        connections.close_all()
    return sentences


def _raised_by_manager(handler: Handler) -> list[str]:
    try:
        handler.rows()
    except Error:
        raise
    except Exception as error:
        return [
            f"get_queryset() of {handler.model._meta.label} raised {type(error).__name__}: {first_line(error)}. A"
            " worker calls it outside of any request."
        ]
    return []


def counted_in(worker: WorkerOptions) -> list[tuple[str, tuple[int, int]]]:
    """Return how many rows of each model are complete and failed, where that is not too many to count."""
    try:
        with contextlib.suppress(Error):
            counts = [(one.model, count_rows(one.model, worker.using)) for one in worker.handlers()]
            return [
                (model._meta.label, (found.progress.complete, found.progress.failed))
                for model, found in counts
                if not found.estimated and policy_for(model).completion.keeps
            ]
    finally:
        connections.close_all()
    return []


def pending_in(worker: WorkerOptions) -> list[str]:
    """Return the migrations to wait for; none of a database that does not answer."""
    models = [handler.model for handler in worker.handlers()]
    try:
        with contextlib.suppress(Error):
            lacking = any(lacking_tables(model, worker.using) for model in models)
            return pending_migrations(models, worker.using, lacking=lacking)
    finally:
        connections.close_all()
    return []


def _refused_checks(handler: Handler, using: str) -> list[str]:
    try:
        checks = health_checks(handler.health_checks)
        found = [refusal(check, using, ask=ask) for check in checks for ask in (False, True)]
    except (ImportError, TypeError) as error:
        return [f"A health check of {handler.name} cannot be loaded: {error}"]
    # A check that would be worthless keeps the worker from starting.
    return [f"{one.message} {one.hint}" for one in found if one is not None]


def _prepare_health_file(worker: WorkerOptions) -> None:
    try:
        HealthFile(worker.health_file).prepare()
    except OSError as error:
        _refuse(
            [
                _ended(
                    f"--health-file cannot be used: {error.strerror or error}: {worker.health_file}"
                )
            ]
        )


def _refuse(sentences: Sequence[str]) -> None:
    if sentences:
        raise CommandError("\n".join(sentences), returncode=ExitCode.USAGE)


def _refuse_contradictions(in_process: bool, options: dict[str, Any]) -> None:
    if in_process and options["processes"] != 1:
        _refuse(["--in-process is one process; leave --processes out."])
    if options["once"] and options["drain"]:
        _refuse(["--once is one look, and --drain goes on until nothing is left; choose one."])


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith("?") else sentence.rstrip(".") + "."


def _supervisor(worker: WorkerOptions) -> Any:
    # Not importable where the platform has no POSIX signals; --in-process works there.
    from django_taskclaim.worker.supervisor import Supervisor

    show_title(f"supervisor, {listed(worker.labels)}")
    return Supervisor(worker)


def _all_models(alias: str | None) -> list[Any]:
    """Return the models that have a handler; those on the database *alias* where one is named."""
    _refuse([why for _model, why in faults])
    found = [model for model in models_with_handler() if alias is None or holds(alias, model)]
    if not found:
        known = models_to_claim()
        what = (
            f"write one, with @handler({known[0].__name__}) for example, in the claims.py of an installed app, or give"
            " the model a process() method"
            if known
            else "give one the mixin TaskMixin, and write @handler(…) in the claims.py of an installed app"
        )
        on = f" on the database {alias!r}" if alias else ""
        _refuse([f"No model{on} has a handler: {what}."])
    return found


def _database(models: list[Any], named: str | None) -> str:
    """Return the database to work on: the one named, or the one that the router writes all the models to."""
    aliases = {named or router.db_for_write(model) for model in models}
    if len(aliases) > 1:
        raise CommandError(
            f"These models live on {', '.join(sorted(aliases))}; start a worker for each, or name one --database.",
            returncode=ExitCode.USAGE,
        )
    return aliases.pop()


def _end(limit: timedelta | None) -> float | None:
    return None if limit is None else clock() + limit.total_seconds()


def _batch_size(text: str) -> int:
    return whole_number(text, most=conf.MAX_BATCH_SIZE)


def _name(text: str) -> str:
    if not text or len(text) > 100 or set("#@") & set(text):
        raise CommandError(
            f"--name must be 1 to 100 characters without # and @, not {text!r}.", returncode=2
        )
    return text
