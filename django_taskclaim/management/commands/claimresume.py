"""``manage.py claimresume``: let claims flow again."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from django_taskclaim.control.actions import RESUME_ROWS
from django_taskclaim.control.audit import account_of, turn
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.formatting import listed
from django_taskclaim.handlers import handler_for
from django_taskclaim.management.arguments import add_database, add_models, places
from django_taskclaim.management.base import ClaimCommand, whoami
from django_taskclaim.management.rows import add_rows_instead, refuse_unless_one, run_on_rows
from django_taskclaim.monitoring.overview import workers
from django_taskclaim.switch import paused_by, paused_model


class Command(ClaimCommand):
    """Turn the switch on, or resume rows."""

    help = """Turn the switch of models on again; workers notice within seconds.

--all takes back the pause of everything; models that were paused by name stay paused, and are named here.

With --rows, open paused rows of one model, the old ones of a table just adopted for example, chunk by chunk, each
committed: it may be stopped (Ctrl-C) at any time, and the same command goes on from there."""
    in_english = True
    epilog = """examples:
  manage.py claimresume photos.Photo
  manage.py claimresume --all
  manage.py claimresume photos.Photo --rows --limit 1000
  manage.py claimresume photos.Photo --rows --filter country=NZ --dry-run

exit codes:
  0    resumed
  1    a database could not be reached, or the answer was no; the message says which, and what was done
  2    wrong usage
  130  stopped by Ctrl-C; rows that were opened stay so"""

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_models(parser, "the models to resume")
        parser.add_argument("--all", action="store_true", help="take back the pause of every model")
        parser.add_argument("--by", metavar="NAME", help="who resumes (default: user@host)")
        add_database(
            parser, "every database that holds the model; with --rows, where the router writes it"
        )
        add_rows_instead(parser, "resume paused")
        parser.add_argument("--reason", default="", metavar="TEXT", help="why, for the record")

    def handle(self, *, models: list[Any], database: str | None, **options: Any) -> None:
        if options["rows"]:
            if run_on_rows(self, RESUME_ROWS, models, database, **options):
                self._tell_what_stays(models, database)
            return
        refuse_unless_one(models, options)
        who = options["by"] or whoami()
        facts = {"by": who, "user": account_of(who), "reason": options["reason"]}
        try:
            for model in [None] if options["all"] else models:
                turn(model, off=False, using=database, **facts)
        except TaskClaimError as error:
            raise CommandError(str(error)) from error
        names = "all models" if options["all"] else ", ".join(model._meta.label for model in models)
        self.stdout.write(self.style.SUCCESS(f"Resumed {names}."))
        self._tell_what_stays(models, database)
        self._tell_who_is_missing(models, database)

    def _tell_who_is_missing(self, models: list[Any], database: str | None) -> None:
        """Where nobody works, a resume changes nothing that anybody would see."""
        where = [(model, alias) for model, alias in places(models, database) if handler_for(model)]
        known = {alias: workers(alias) for alias in {alias for _model, alias in where}}
        idle = [
            model._meta.label
            for model, alias in where
            if not any(worker.alive and worker.serves(model) for worker in known[alias])
        ]
        if idle:
            self._warn(f"No worker for {listed(idle)} is alive; manage.py claimworker {idle[0]}")

    def _warn(self, sentence: str) -> None:
        self.stdout.write(self.style.WARNING(sentence))

    def _tell_what_stays(self, models: list[Any], database: str | None) -> None:
        """A pause of everything, of a parent, or by name under --all stays; nobody should wonder about it."""
        for model, alias in places(models, database):
            pause = paused_by(model, using=alias)
            if pause is not None:
                label = paused_model(pause)
                who = f" by {pause.by}" if pause.by else ""
                self._warn(
                    f"{model._meta.label} stays paused: {label or 'everything'} is paused{who};"
                    f" manage.py claimresume {label or '--all'}"
                )
