"""What ``claimpause`` and ``claimresume`` share: they turn switches, or with ``--rows`` change rows of one model."""

from argparse import ArgumentParser
from datetime import timedelta
from typing import Any, ClassVar

from django.core.management.base import CommandError

from django_taskclaim.control.actions import Action
from django_taskclaim.control.switch_changes import turn
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.management.arguments import add_choice_of_rows, add_database, add_models
from django_taskclaim.management.base import USAGE, ClaimCommand, acting
from django_taskclaim.management.rows import rows_of, run_action


class SwitchCommand(ClaimCommand):
    """Turns the switch *off*, or on."""

    in_english = True
    off: ClassVar[bool]
    #: What ``--rows`` does, with rows in its states.
    on_rows: ClassVar[Action]

    def add_arguments(self, parser: ArgumentParser) -> None:
        word = "pause" if self.off else "resume"
        add_models(parser, f"the models to {word}")
        parser.add_argument("--all", action="store_true", help=f"{word} every model")
        parser.add_argument("--reason", default="", metavar="TEXT", help="why, for the record")
        parser.add_argument("--by", metavar="NAME", help="who does it, beside user@host")
        add_database(
            parser, "every database that holds the model; with --rows, where the router writes it"
        )
        text = f"{word} rows of one model instead of turning its switch"
        parser.add_argument("--rows", action="store_true", help=text)
        add_choice_of_rows(parser, "with --rows: ")

    def handle(self, *, models: list[Any], database: str | None, **options: Any) -> None:
        if options["rows"]:
            self._change_rows(models, database, **options)
        else:
            self._turn(models, database, **options)

    def _change_rows(
        self, models: list[Any], database: str | None, *, filters: list[str], **options: Any
    ) -> None:
        if len(models) != 1 or options["all"]:
            raise CommandError("--rows takes one model.", returncode=USAGE)
        with rows_of(models[0], database) as choice:
            choice.by_state(*self.on_rows.states)
            choice.by_filters(filters)
            changed = run_action(self, self.on_rows, choice, **options)
        if changed:
            self.warn_of_pauses(models, database)

    def _turn(
        self,
        models: list[Any],
        database: str | None,
        *,
        by: str | None,
        reason: str,
        until: timedelta | None = None,
        **options: object,
    ) -> None:
        if any(options[name] for name in ("filters", "limit", "dry_run")):
            text = "--filter, --limit and --dry-run choose rows; say --rows with them."
            raise CommandError(text, returncode=USAGE)
        if bool(models) == options["all"]:
            raise CommandError("Name the models, or say --all (not both).", returncode=USAGE)
        facts: dict[str, Any] = {"by": acting(by), "reason": reason}
        try:
            for model in models or [None]:
                turn(model, off=self.off, until=until, using=database, **facts)
        except TaskClaimError as error:
            raise CommandError(str(error)) from error
        self.report(", ".join(model._meta.label for model in models) or "all models", until)
        self.warn_of_pauses(models, database)

    def report(self, names: str, until: timedelta | None) -> None:
        """Say what was done."""
        raise NotImplementedError

    def warn_of_pauses(self, models: list[Any], database: str | None) -> None:
        """Say what else keeps rows of *models* from being claimed."""
