"""``manage.py claimpause``: stop every claim of a model, on every host, until somebody resumes."""

from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError

from django_taskclaim.control.actions import PAUSE_ROWS
from django_taskclaim.control.audit import account_of, turn
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.formatting import format_duration
from django_taskclaim.management.arguments import add_database, add_models, duration
from django_taskclaim.management.base import USAGE, ClaimCommand, whoami
from django_taskclaim.management.rows import add_rows_instead, refuse_unless_one, run_on_rows


class Command(ClaimCommand):
    """Turn the switch off, or pause rows."""

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
        add_rows_instead(parser, "pause open")

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
        if options["rows"]:
            if until is not None:
                raise CommandError(
                    "--until ends a pause of the switch; rows stay paused until manage.py claimresume --rows.",
                    returncode=USAGE,
                )
            run_on_rows(self, PAUSE_ROWS, models, database, reason=reason, by=by, **options)
            return
        refuse_unless_one(models, options)
        who = by or whoami()
        facts: dict[str, Any] = {"by": who, "user": account_of(who), "reason": reason}
        try:
            for model in [None] if options["all"] else models:
                turn(model, off=True, until=until, using=database, **facts)
        except TaskClaimError as error:
            raise CommandError(str(error)) from error
        names = "all models" if options["all"] else ", ".join(model._meta.label for model in models)
        end = f" for {format_duration(until)}" if until is not None else ""
        self.stdout.write(self.style.WARNING(f"Paused {names}{end}. Running rows finish."))
