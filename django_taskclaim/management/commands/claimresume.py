"""``manage.py claimresume``: let claims flow again."""

from typing import Any

from django_taskclaim.management.base import Model, places
from django_taskclaim.management.commands.claimpause import Command as Pause
from django_taskclaim.switch import paused_by, paused_model


class Command(Pause):
    """Turn the switch on, and name each pause that stays: of everything, or of a parent."""

    help = """Turn the switch of models on again; workers notice within seconds.

--all takes back the pause of everything; models that were paused by name stay paused, and are named here."""
    epilog = """examples:
  manage.py claimresume photos.Photo
  manage.py claimresume --all"""

    off = False

    def handle(self, *, models: list[Model], database: str | None, **options: Any) -> None:
        super().handle(models=models, database=database, **options)
        for model, alias in places(models, database):
            if (pause := paused_by(model, using=alias)) is None:
                continue
            label, who = paused_model(pause), f" by {pause.by}" if pause.by else ""
            text = (
                f"{model._meta.label} stays paused: {label or 'everything'} is paused{who};"
                f" manage.py claimresume {label or '--all'}"
            )
            self.stdout.write(self.style.WARNING(text))
