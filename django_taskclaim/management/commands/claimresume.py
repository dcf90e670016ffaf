"""Turn the switch of models on again; workers notice within seconds.

--all takes back the pause of everything; models that were paused by name stay paused, and are named here.

Examples:
  manage.py claimresume photos.Photo
  manage.py claimresume --all

"""

from typing import Any

from django_taskclaim.management.commands.claimpause import Command as Pause
from django_taskclaim.switch import describe_pause, paused_by, paused_model


class Command(Pause):
    takes = ("*", "the models to resume")
    off = False

    def handle(self, **options: Any) -> None:
        super().handle(**options)
        for model in dict.fromkeys(model for model, _ in self.where):
            if pause := paused_by(model, using=options["database"]):
                text = f"{model._meta.label} stays paused: {describe_pause(pause)}."
                command = f"manage.py claimresume {paused_model(pause) or '--all'}"
                self.stdout.write(self.style.WARNING(f"{text} {command}"))
