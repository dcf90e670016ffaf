"""``manage.py claimresume``: let claims flow again."""

from datetime import timedelta
from typing import Any

from django_taskclaim.control.actions import RESUME_ROWS
from django_taskclaim.formatting import listed
from django_taskclaim.handlers import handler_for
from django_taskclaim.management.arguments import places
from django_taskclaim.management.turning import SwitchCommand
from django_taskclaim.monitoring.overview import workers
from django_taskclaim.switch import paused_by, paused_model


class Command(SwitchCommand):
    """Turn the switch on, or resume rows."""

    help = """Turn the switch of models on again; workers notice within seconds.

--all takes back the pause of everything; models that were paused by name stay paused, and are named here.

With --rows, open paused rows of one model, the old ones of a table just adopted for example, chunk by chunk, each
committed: it may be stopped (Ctrl-C) at any time, and the same command goes on from there."""
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

    off, on_rows = False, RESUME_ROWS

    def report(self, names: str, until: timedelta | None) -> None:
        self.stdout.write(self.style.SUCCESS(f"Resumed {names}."))

    def warn_of_pauses(self, models: list[Any], database: str | None) -> None:
        """Name each pause that stays, of everything or of a parent, and models without a living worker."""
        where = places(models, database)
        for model, alias in where:
            pause = paused_by(model, using=alias)
            if pause is not None:
                label = paused_model(pause)
                who = f" by {pause.by}" if pause.by else ""
                self._warn(
                    f"{model._meta.label} stays paused: {label or 'everything'} is paused{who};"
                    f" manage.py claimresume {label or '--all'}"
                )
        known = {alias: workers(alias) for alias in {alias for _model, alias in where}}
        idle = [
            model._meta.label
            for model, alias in where
            if handler_for(model)
            and not any(worker.alive and worker.serves(model) for worker in known[alias])
        ]
        if idle:
            self._warn(f"No worker for {listed(idle)} is alive; manage.py claimworker {idle[0]}")

    def _warn(self, sentence: str) -> None:
        self.stdout.write(self.style.WARNING(sentence))
