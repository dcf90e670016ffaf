"""``manage.py claimresume``: let claims flow again."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.handlers import handler_for
from django_taskclaim.management.arguments import add_database, add_models, places
from django_taskclaim.management.base import ClaimCommand
from django_taskclaim.management.commands.claimpause import (
    recorded_turn,
    refuse_unless_one,
    whoami,
)
from django_taskclaim.overview import workers
from django_taskclaim.switch import paused_by, resume, resume_all
from django_taskclaim.wording import listed


class Command(ClaimCommand):
    """Turn the switch on."""

    help = """Turn the switch of models on again; workers notice within seconds.

--all takes back the pause of everything; models that were paused by name stay paused, and are named here."""
    in_english = True
    epilog = """examples:
  manage.py claimresume photos.Photo
  manage.py claimresume --all

exit codes:
  0  resumed
  1  a database could not be reached; the message says which
  2  wrong usage"""

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_models(parser, "the models to resume")
        parser.add_argument("--all", action="store_true", help="take back the pause of every model")
        parser.add_argument("--by", metavar="NAME", help="who resumes (default: user@host)")
        add_database(parser, "every database that holds the model")

    def handle(self, *, models: list[Any], database: str | None, **options: Any) -> None:
        refuse_unless_one(models, options["all"])
        try:
            for model in [None] if options["all"] else models:
                with recorded_turn(model, "resume", database, by=options["by"] or whoami()):
                    resume_all(using=database) if model is None else resume(model, using=database)
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
                wide = "everything is paused" if pause.scope == "*" else f"{pause.scope} is paused"
                undo = "--all" if pause.scope == "*" else pause.scope
                who = f" by {pause.by}" if pause.by else ""
                self._warn(
                    f"{model._meta.label} stays paused: {wide}{who}; manage.py claimresume {undo}"
                )
