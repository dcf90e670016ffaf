"""``manage.py claimlimit``: set what all workers of a model keep to together, while they run."""

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from typing import Any

from django.core.management.base import CommandError
from django.db import Error

from django_taskclaim.allowances import Hours, Rate
from django_taskclaim.control.audit import account_of, record_action
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.limits.model_limits import limits_of
from django_taskclaim.management.arguments import add_database, add_models, whole_number
from django_taskclaim.management.base import USAGE, ClaimCommand, whoami
from django_taskclaim.switch import SwitchError, places_of, set_overrides

#: What can be said instead of a value.
NONE, DEFAULT = "none", "default"


class Command(ClaimCommand):
    """Set limits of the fleet."""

    help = """Set what all who claim rows of a model keep to together, on every host, while they run: how many rows in
a time, how many at once, and at which hours. What is set goes before what the handler says, and stands until it is
changed; "none" is no limit, "default" gives one back to the handler. Without an option it shows what holds."""
    in_english = True
    epilog = """examples:
  manage.py claimlimit photos.Photo
  manage.py claimlimit photos.Photo --rate 100/m --max-running 20 --reason "the API is slow today"
  manage.py claimlimit photos.Photo --hours 22:00-06:00
  manage.py claimlimit photos.Photo --rate default

exit codes:
  0  set, or shown
  1  a database could not be reached; the message says which, and where the limits were set
  2  wrong usage"""

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_models(parser, "the models to limit")
        parser.add_argument(
            "--rate",
            type=_value(lambda text: Rate.parse(text).text, ""),
            metavar="ROWS/TIME",
            help="rows that are claimed in a second, a minute, an hour or a day: 5/s, 100/m, 1000/h, 5000/d",
        )
        parser.add_argument(
            "--max-running",
            type=_value(whole_number, 0),
            metavar="ROWS",
            help="rows that are processing at once",
        )
        parser.add_argument(
            "--hours",
            type=_value(lambda text: Hours.parse(text).text, ""),
            metavar="FROM-TO",
            help="the hours at which rows are claimed, in TIME_ZONE, over midnight too: 22:00-06:00",
        )
        parser.add_argument("--by", metavar="NAME", help="who sets it (default: user@host)")
        parser.add_argument("--reason", default="", metavar="TEXT", help="why, for the record")
        add_database(parser, "every database that holds the model")

    def handle(
        self,
        *,
        models: list[Any],
        by: str | None,
        reason: str,
        database: str | None,
        **options: Any,
    ) -> None:
        if not models:
            raise CommandError("Name the models.", returncode=USAGE)
        given = {name: options[name] for name in ("rate", "max_running", "hours")}
        wanted = {
            name: None if value == DEFAULT else value
            for name, value in given.items()
            if value is not None
        }
        who = by or whoami()
        try:
            for model in models:
                if wanted:
                    self._set(model, wanted, who, reason, database)
                self._show(model, database)
        except (Error, TaskClaimError) as error:
            raise CommandError(str(error)) from error

    def _set(
        self, model: Any, wanted: dict[str, Any], who: str, reason: str, database: str | None
    ) -> None:
        words = ", ".join(f"{name.replace('_', ' ')} {_said(wanted[name])}" for name in wanted)
        recorded = f"{words}: {reason}" if reason else words
        aliases: list[str] = []
        try:
            aliases = set_overrides(model, by=who, using=database, **wanted)
        except SwitchError as error:
            aliases = error.done
            raise
        finally:
            if aliases:
                record_action(
                    model, "limits", by=who, reason=recorded, user=account_of(who), using=aliases
                )

    def _show(self, model: Any, database: str | None) -> None:
        aliases = places_of(database, [model])
        for alias in aliases:
            held = "; ".join(str(limits) for limits in limits_of(model, using=alias))
            where = f" on {alias}" if len(aliases) > 1 else ""
            self.stdout.write(f"{model._meta.label}{where}: {held or 'no limits'}")


def _said(value: Any) -> str:
    return DEFAULT if value is None else str(value or NONE)


def _value(parse: Callable[[str], Any], none: Any) -> Callable[[str], Any]:
    """Return what reads one option; ArgumentTypeError in one sentence for what makes no sense."""

    def read(text: str) -> Any:
        if text in (NONE, DEFAULT):
            return none if text == NONE else DEFAULT
        try:
            return parse(text)
        except ValueError as error:
            raise ArgumentTypeError(f"{error} Or say none, or default.") from error

    return read
