"""``manage.py claimlimit``: override options of a model's handler while its workers run."""

from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from typing import Any

from django.core.management.base import CommandError

from django_taskclaim.control.audit import change_overrides, in_words
from django_taskclaim.management.base import (
    USAGE,
    ClaimCommand,
    Model,
    acting,
    add_database,
    add_models,
    add_record,
)
from django_taskclaim.switch import override_from_text, overrides_of, places_of
from django_taskclaim.tables import LIMITS, OVERRIDES

#: The placeholder and the help text of each option.
_OPTIONS = {
    "batch_size": ("ROWS", "rows that a worker claims at once, at most"),
    "lease": ("TIME", "how long a claim of a worker lasts unless renewed: 90s, 5m"),
    "rate": (
        "ROWS/TIME",
        "rows that are claimed in a second, a minute, an hour or a day: 5/s, 100/m, 1000/h, 5000/d",
    ),
    "max_running": ("ROWS", "rows that are running at once"),
    "hours": (
        "FROM-TO",
        "the hours at which rows are claimed, in TIME_ZONE, over midnight too: 22:00-06:00",
    ),
}


class Command(ClaimCommand):
    """Set the overrides of a model."""

    everywhere = True
    help = """Override options of a model's handler on every host, while its workers run. Batch size and lease are for
workers; rate, rows at once and hours are limits that all who claim share. What is set stands until it is changed;
"default" gives one back to the handler, "none" is no limit. Without an option it shows what is set."""
    epilog = """examples:
  manage.py claimlimit photos.Photo
  manage.py claimlimit photos.Photo --rate 100/m --max-running 20 --reason "the API is slow today"
  manage.py claimlimit photos.Photo --hours 22:00-06:00
  manage.py claimlimit photos.Photo --batch-size 10 --lease 5m
  manage.py claimlimit photos.Photo --rate default"""

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_models(parser, "the models whose handlers are overridden", number="+")
        for name, (metavar, text) in _OPTIONS.items():
            parser.add_argument(
                f"--{name.replace('_', '-')}",
                type=_value(name),
                metavar=metavar,
                # None is a value: it gives the option back to the handler.
                default=SUPPRESS,
                help=text,
            )
        add_record(parser)
        add_database(parser, "every database that holds the model")

    def handle(
        self,
        *,
        models: list[Model],
        by: str | None,
        reason: str,
        database: str | None,
        **options: object,
    ) -> None:
        values = {name: options[name] for name in OVERRIDES if name in options}
        try:
            for model in models:
                if values:
                    change_overrides(model, values, by=acting(by), reason=reason, using=database)
                self._show(model, database)
        except ValueError as error:
            raise CommandError(str(error), returncode=USAGE) from error

    def _show(self, model: Model, database: str | None) -> None:
        aliases = places_of(database, [model])
        for alias in aliases:
            text = in_words(overrides_of(model, using=alias)) or "no overrides"
            where = f" on {alias}" if len(aliases) > 1 else ""
            self.stdout.write(f"{model._meta.label}{where}: {text}")


def _value(name: str) -> Callable[[str], Any]:
    """Return what reads one option; ArgumentTypeError in one sentence for what makes no sense."""

    def read(text: str) -> Any:
        try:
            return override_from_text(name, text)
        except ValueError as error:
            words = "none, or default" if name in LIMITS else "default"
            raise ArgumentTypeError(f"{error} Or say {words}.") from error

    return read
