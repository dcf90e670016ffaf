"""Turn the switch of models on again; workers notice within seconds.

--all takes back the pause of everything; models that were paused by name stay paused, and are named here.

Examples:
  manage.py claimresume photos.Photo
  manage.py claimresume --all

"""

from typing import Any

from django_taskclaim.management.commands.claimpause import Command as Pause
from django_taskclaim.switch import paused_by, paused_model


class Command(Pause):
    help = __doc__
    takes = ("*", "the models to resume")
    off = False

    def handle(self, **options: Any) -> None:
        super().handle(**options)
        for model in dict.fromkeys(model for model, _ in self.where):
            if (pause := paused_by(model, using=options["database"])) is None:
                continue
            label, who = paused_model(pause), f" by {pause.by}" if pause.by else ""
            text = (
                f"{model._meta.label} stays paused: {label or 'everything'} is paused{who};"
                f" manage.py claimresume {label or '--all'}"
            )
            self.stdout.write(self.style.WARNING(text))
