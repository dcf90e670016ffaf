"""``manage.py claimpause``: stop every claim of a model, on every host, until somebody resumes."""

import contextlib
from argparse import ArgumentParser
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError

from django_taskclaim.control.acts import account_of, record_act
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.formatting import format_duration
from django_taskclaim.management.arguments import add_database, add_models, duration
from django_taskclaim.management.base import USAGE, ClaimCommand, whoami
from django_taskclaim.management.switching import (
    PauseRows,
    act_on_rows,
    add_rows,
    refuse_options_of_rows,
)
from django_taskclaim.switch import (
    SwitchError,
    claimable_models,
    pause,
    pause_all,
    places_of,
)


class Command(ClaimCommand):
    """Turn the switch off, or put rows aside."""

    help = """Turn the switch of models off: once this returns, no claim that starts takes a row of theirs, on any host.

Rows that run finish. A pause outlives every restart and stands until manage.py claimresume, or until --until.

With --rows, take open rows of one model out of the queue, chunk by chunk, each committed; it may be stopped (Ctrl-C) at
any time. They stay out until manage.py claimresume --rows."""
    in_english = True
    epilog = """examples:
  manage.py claimpause photos.Photo --reason "the image server is down"
  manage.py claimpause --all --until 30m --reason deployment
  manage.py claimpause photos.Photo --rows --filter country=NZ

exit codes:
  0    paused
  1    a database could not be reached, or the answer was no; the message says which, and where the pause stands
  2    wrong usage
  130  stopped by Ctrl-C; rows that were paused stay so"""

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_models(parser, "the models to pause")
        parser.add_argument(
            "--all", action="store_true", help="pause every model, those of the future too"
        )
        parser.add_argument(
            "--reason", default="", metavar="TEXT", help="why, for everybody who looks"
        )
        parser.add_argument("--by", metavar="NAME", help="who pauses (default: user@host)")
        parser.add_argument(
            "--until",
            metavar="SECONDS",
            type=duration,
            help="end by itself after this long: seconds, or 30m, 2h, 1d (default: never)",
        )
        add_database(
            parser, "every database that holds the model; with --rows, where the router writes it"
        )
        add_rows(parser, "put aside open")

    def handle(
        self,
        *,
        models: list[Any],
        reason: str,
        by: str | None,
        until: timedelta | None,
        database: str | None,
        **options: Any,
    ) -> None:
        refuse_options_of_rows(options)
        if options["rows"]:
            if until is not None:
                raise CommandError(
                    "--until ends a pause of the switch; rows stay paused until manage.py claimresume --rows.",
                    returncode=USAGE,
                )
            return act_on_rows(
                self, PauseRows, models, database=database, reason=reason, by=by, **options
            )
        refuse_unless_one(models, options["all"])
        who = by or whoami()
        facts: dict[str, Any] = {"reason": reason, "by": who, "until": until, "using": database}
        end = f" for {format_duration(until)}" if until is not None else ""
        try:
            for model in [None] if options["all"] else models:
                with recorded_turn(
                    model, "pause", database, by=who, reason=f"{reason}{end}".strip()
                ):
                    pause_all(**facts) if model is None else pause(model, **facts)
        except TaskClaimError as error:
            raise CommandError(str(error)) from error
        names = "all models" if options["all"] else ", ".join(model._meta.label for model in models)
        self.stdout.write(self.style.WARNING(f"Paused {names}{end}. Running rows finish."))


def refuse_unless_one(models: list[Any], everything: bool) -> None:
    """Refuse a switch command that names neither models nor ``--all``, or both."""
    if bool(models) == everything:
        raise CommandError("Name the models, or say --all (not both).", returncode=USAGE)


@contextlib.contextmanager
def recorded_turn(
    model: Any, act: str, database: str | None, *, by: str, reason: str = ""
) -> Iterator[None]:
    """Record that the block turned the switch of *model*, of all with None, on every database where it did."""
    turned = places_of(database, claimable_models() if model is None else [model])
    try:
        yield
    except SwitchError as error:
        turned = error.done
        raise
    finally:
        if turned:
            record_act(model, act, by=by, reason=reason, user=account_of(by), using=turned)
