"""Turn the switch of models off. After this returns, no new claim takes a row of theirs, on any host.

Running rows finish. A pause outlives every restart and stands until manage.py claimresume, or until --until.

Examples:
  manage.py claimpause photos.Photo --reason "the image server is down"
  manage.py claimpause --all --until 30m --reason deployment

"""

from argparse import ArgumentParser
from typing import Any, ClassVar

from django_taskclaim.control.audit import turn
from django_taskclaim.formatting import format_duration
from django_taskclaim.management.base import ClaimCommand, Model, UsageError, duration


class Command(ClaimCommand):
    takes = ("*", "the models to pause")
    everywhere = True
    is_recorded = True
    #: ``claimresume`` is the same command with the switch turned the other way.
    off: ClassVar[bool] = True

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--all", action="store_true", help="every model")
        if self.off:
            text = "end by itself after this long: seconds, or 30m, 2h, 1d (default: never)"
            parser.add_argument("--until", type=duration, metavar="SECONDS", help=text)

    def handle(self, *, models: list[Model | None], **options: Any) -> None:
        if bool(models) == options["all"]:
            raise UsageError("Name the models, or say --all (not both).")
        until, using = options.get("until"), options["database"]
        facts = {"by": options["by"], "reason": options["reason"], "until": until, "using": using}
        end = "" if until is None else f" for {format_duration(until)}"
        for model in models or [None]:
            turn(model, off=self.off, **facts)
            name = "all models" if model is None else model._meta.label
            paused = f"Paused {name}{end}. Running rows finish."
            self.stdout.write(paused if self.off else f"Resumed {name}.")
