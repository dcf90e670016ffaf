"""What ``claimpause`` and ``claimresume`` share: they turn switches, or with ``--rows`` change rows of one model."""

from argparse import ArgumentParser
from datetime import timedelta
from typing import Any, ClassVar

from django.core.management.base import CommandError

from django_taskclaim.control.actions import Action
from django_taskclaim.control.switch_changes import turn
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.formatting import format_duration
from django_taskclaim.management.arguments import (
    add_choice_of_rows,
    add_database,
    add_models,
    add_record,
    places,
)
from django_taskclaim.management.base import USAGE, ClaimCommand, acting
from django_taskclaim.management.rows import rows_of, run_action
from django_taskclaim.switch import paused_by, paused_model


class SwitchCommand(ClaimCommand):
    """Turns the switch *off*, or on."""

    off: ClassVar[bool]
    #: What ``--rows`` does, with rows in its states.
    on_rows: ClassVar[Action]

    def add_arguments(self, parser: ArgumentParser) -> None:
        word = "pause" if self.off else "resume"
        add_models(parser, f"the models to {word}")
        parser.add_argument("--all", action="store_true", help=f"{word} every model")
        add_record(parser)
        add_database(
            parser, "every database that holds the model; with --rows, where the router writes it"
        )
        text = f"{word} rows of one model instead of turning its switch"
        parser.add_argument("--rows", action="store_true", help=text)
        add_choice_of_rows(parser, "with --rows: ")

    def handle(self, *, models: list[Any], database: str | None, **options: Any) -> None:
        if options["rows"] and options.get("until") is not None:
            text = "--until ends a pause of the switch; rows stay paused until manage.py claimresume --rows."
            raise CommandError(text, returncode=USAGE)
        if options["rows"]:
            self._change_rows(models, database, **options)
        else:
            self._turn(models, database, **options)

    def _change_rows(
        self, models: list[Any], database: str | None, *, filters: list[str], **options: Any
    ) -> None:
        if len(models) != 1 or options["all"]:
            raise CommandError("--rows takes one model.", returncode=USAGE)
        with rows_of(models[0], database, sorted(self.on_rows.states), filters) as choice:
            changed = run_action(self, self.on_rows, choice, **options)
        if changed:
            self._warn_of_pauses(models, database)

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
        names = ", ".join(model._meta.label for model in models) or "all models"
        if self.off:
            end = f" for {format_duration(until)}" if until is not None else ""
            self.stdout.write(self.style.WARNING(f"Paused {names}{end}. Running rows finish."))
        else:
            self.stdout.write(self.style.SUCCESS(f"Resumed {names}."))
        self._warn_of_pauses(models, database)

    def _warn_of_pauses(self, models: list[Any], database: str | None) -> None:
        """After a resume, name each pause that stays: of everything, or of a parent."""
        for model, alias in [] if self.off else places(models, database):
            pause = paused_by(model, using=alias)
            if pause is not None:
                label = paused_model(pause)
                who = f" by {pause.by}" if pause.by else ""
                self.stdout.write(
                    self.style.WARNING(
                        f"{model._meta.label} stays paused: {label or 'everything'} is paused{who};"
                        f" manage.py claimresume {label or '--all'}"
                    )
                )
