"""Override options of a model's handler on every host, while its workers run.

Batch size and lease are for workers; rate, rows at once and hours are limits that all who claim share. What is set
stands until it is changed; "default" gives one back to the handler, "none" is no limit. Without an option it shows what
is set.

Examples:
  manage.py claimlimit photos.Photo
  manage.py claimlimit photos.Photo --rate 100/m --max-running 20 --reason "the API is slow today"
  manage.py claimlimit photos.Photo --hours 22:00-06:00
  manage.py claimlimit photos.Photo --batch-size 10 --lease 5m
  manage.py claimlimit photos.Photo --rate default

"""

from argparse import ArgumentParser
from typing import Any

from django.db import DEFAULT_DB_ALIAS

from django_taskclaim.control.audit import change_overrides, overrides_text
from django_taskclaim.management.base import ClaimCommand, Model, UsageError
from django_taskclaim.switch import override_from_text, overrides_of, places_of
from django_taskclaim.tables import OVERRIDES

#: The help text of each option.
_OPTIONS = {
    "batch_size": "rows that a worker claims at once, at most",
    "lease": "how long a claim of a worker lasts unless renewed: 90s, 5m",
    "rate": "rows that are claimed in a second, minute, hour or day: 5/s, 100/m, 1000/h, 5000/d",
    "max_running": "rows that are running at once",
    "hours": "hours at which rows are claimed, in TIME_ZONE, over midnight too: 22:00-06:00",
}


class Command(ClaimCommand):
    takes = ("+", "the models whose handlers are overridden")
    everywhere = True
    is_recorded = True

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        for name, text in _OPTIONS.items():
            parser.add_argument(f"--{name.replace('_', '-')}", help=text)

    def handle(self, *, models: list[Model], database: str | None, **options: Any) -> None:
        by, reason = options["by"], options["reason"]
        given = {name: options[name] for name in OVERRIDES if options[name] is not None}
        try:
            values = {name: override_from_text(name, text) for name, text in given.items()}
            for model in models:
                if values:
                    change_overrides(model, values, by=by, reason=reason, using=database)
                for alias in places_of(database, [model]):
                    self.stdout.write(_line(model, alias))
        except ValueError as error:
            raise UsageError(str(error)) from error


def _line(model: Model, alias: str) -> str:
    where = "" if alias == DEFAULT_DB_ALIAS else f" on {alias}"
    text = overrides_text(overrides_of(model, using=alias)) or "no overrides"
    return f"{model._meta.label}{where}: {text}"
