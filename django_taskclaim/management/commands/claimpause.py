"""``manage.py claimpause``: stop every claim of a model, on every host, until somebody resumes.

``claimresume`` is the same command with the switch turned the other way.
"""

from argparse import ArgumentParser
from datetime import timedelta
from typing import Any, ClassVar

from django.core.management.base import CommandError

from django_taskclaim.control.actions import PAUSE_ROWS, Action
from django_taskclaim.control.audit import turn
from django_taskclaim.formatting import format_duration
from django_taskclaim.management.base import (
    USAGE,
    Model,
    acting,
    add_choice_of_rows,
    add_database,
    add_models,
    add_record,
    duration,
    places,
)
from django_taskclaim.management.rows import RowsCommand
from django_taskclaim.switch import paused_by, paused_model


class Command(RowsCommand):
    """Turn the switch off, or pause rows."""

    help = """Turn the switch of models off: once this returns, no claim that starts takes a row of theirs, on any host.

Rows that run finish. A pause outlives every restart and stands until manage.py claimresume, or until --until.

With --rows, take open rows of one model out of the queue, chunk by chunk, each committed; it may be stopped (Ctrl-C) at
any time. They stay out until manage.py claimresume --rows."""
    epilog = """examples:
  manage.py claimpause photos.Photo --reason "the image server is down"
  manage.py claimpause --all --until 30m --reason deployment
  manage.py claimpause photos.Photo --rows --filter country=NZ"""

    everywhere = True
    off: ClassVar[bool] = True
    #: What ``--rows`` does, with rows in its states.
    on_rows: ClassVar[Action] = PAUSE_ROWS

    def add_arguments(self, parser: ArgumentParser) -> None:
        word = "pause" if self.off else "resume"
        add_models(parser, f"the models to {word}")
        parser.add_argument("--all", action="store_true", help=f"{word} every model")
        add_record(parser)
        add_database(
            parser, "every database that holds the model; with --rows, where the router writes it"
        )
        text = f"{word} rows of one model instead of turning its switch"
        parser.add_argument("--rows", action="store_true", help=text)
        add_choice_of_rows(parser, "with --rows: ")
        if self.off:
            parser.add_argument(
                "--until",
                metavar="SECONDS",
                type=duration,
                help="end by itself after this long: seconds, or 30m, 2h, 1d (default: never)",
            )

    def handle(self, *, models: list[Model], database: str | None, **options: Any) -> None:
        if fault := self._fault(models, options):
            raise CommandError(fault, returncode=USAGE)
        if options["rows"]:
            states = sorted(self.on_rows.states)
            if not self.act(self.on_rows, models[0], states=states, database=database, **options):
                return
        else:
            self._turn(models, database, options)
        if not self.off:
            self._warn_of_pauses(models, database)

    def _fault(self, models: list[Model], options: dict[str, Any]) -> str:
        """Return what is wrong with these words together."""
        if options["rows"]:
            if options.get("until") is not None:
                return "--until ends a pause of the switch; rows stay paused until manage.py claimresume --rows."
            return "" if len(models) == 1 and not options["all"] else "--rows takes one model."
        if any(options[name] for name in ("filters", "limit", "dry_run")):
            return "--filter, --limit and --dry-run choose rows; say --rows with them."
        if bool(models) == options["all"]:
            return "Name the models, or say --all (not both)."
        return ""

    def _turn(self, models: list[Model], database: str | None, options: dict[str, Any]) -> None:
        until: timedelta | None = options.get("until")
        by, reason = acting(options["by"]), options["reason"]
        chosen: list[Model | None] = [*models] if models else [None]
        for model in chosen:
            turn(model, off=self.off, until=until, using=database, by=by, reason=reason)
        names = ", ".join(model._meta.label for model in models) or "all models"
        if self.off:
            end = f" for {format_duration(until)}" if until is not None else ""
            self.stdout.write(self.style.WARNING(f"Paused {names}{end}. Running rows finish."))
        else:
            self.stdout.write(self.style.SUCCESS(f"Resumed {names}."))

    def _warn_of_pauses(self, models: list[Model], database: str | None) -> None:
        """Name each pause that stays: of everything, or of a parent."""
        for model, alias in places(models, database):
            if (pause := paused_by(model, using=alias)) is None:
                continue
            label, who = paused_model(pause), f" by {pause.by}" if pause.by else ""
            text = (
                f"{model._meta.label} stays paused: {label or 'everything'} is paused{who};"
                f" manage.py claimresume {label or '--all'}"
            )
            self.stdout.write(self.style.WARNING(text))
