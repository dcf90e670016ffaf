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

from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError
from functools import partial
from typing import Any

from django.core.management.base import CommandError
from django.db import DEFAULT_DB_ALIAS

from django_taskclaim.control.audit import change_overrides, overrides_text
from django_taskclaim.management.base import ClaimCommand, Model
from django_taskclaim.switch import override_from_text, overrides_of, places_of
from django_taskclaim.tables import LIMITS, OVERRIDES

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
            option, read = f"--{name.replace('_', '-')}", partial(_value, name)
            # None is a value: it gives the option back to the handler.
            parser.add_argument(option, type=read, default=SUPPRESS, help=text)

    def handle(self, *, models: list[Model], database: str | None, **options: Any) -> None:
        values = {name: options[name] for name in OVERRIDES if name in options}
        by, reason = options["by"], options["reason"]
        for model in models:
            if values:
                try:
                    change_overrides(model, values, by=by, reason=reason, using=database)
                except ValueError as error:
                    raise CommandError(f"{model._meta.label}: {error}") from error
            for alias in places_of(database, [model]):
                self.stdout.write(_line(model, alias))


def _line(model: Model, alias: str) -> str:
    where = "" if alias == DEFAULT_DB_ALIAS else f" on {alias}"
    text = overrides_text(overrides_of(model, using=alias)) or "no overrides"
    return f"{model._meta.label}{where}: {text}"


def _value(name: str, text: str) -> object:
    """Read the value of one option; ArgumentTypeError in one sentence for what makes no sense."""
    try:
        return override_from_text(name, text)
    except ValueError as error:
        words = "none, or default" if name in LIMITS else "default"
        raise ArgumentTypeError(f"{error} Or say {words}.") from error
