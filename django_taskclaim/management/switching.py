"""``claimpause --rows`` and ``claimresume --rows``: rows of one model put aside and taken up again, chunk by chunk."""

from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from django.core.management.base import CommandError

from django_taskclaim.management.acting import Choice, RowsCommand, choose_by_state
from django_taskclaim.management.arguments import add_choice_of_rows
from django_taskclaim.management.base import USAGE, ClaimCommand
from django_taskclaim.states import Status
from django_taskclaim.switch import paused_by, paused_model

#: What says which rows, so that it means nothing without ``--rows``.
ONLY_WITH_ROWS = ("filters", "limit", "dry_run")


class StateCommand(RowsCommand):
    """Changes the state of rows; no command of its own, but what ``--rows`` turns another into."""

    state: ClassVar[Status]

    def choose(self, choice: Choice, options: dict[str, Any]) -> None:
        choose_by_state(choice, self.state)


class PauseRows(StateCommand):
    """``claimpause --rows``."""

    act, verb, done = "pause rows", "Pause", "Paused"
    state = Status.OPEN

    def change(self, choice: Choice, limit: int | None, progress: Callable[[int], None]) -> int:
        return choice.rows.pause_rows(limit=limit, progress=progress)


class ResumeRows(StateCommand):
    """``claimresume --rows``."""

    act, verb, done = "resume rows", "Open", "Opened"
    state = Status.PAUSED

    def change(self, choice: Choice, limit: int | None, progress: Callable[[int], None]) -> int:
        return choice.rows.resume_rows(limit=limit, progress=progress)

    def warnings(self, choice: Choice, found: dict[str, int]) -> Iterator[str]:
        if (pause := paused_by(choice.rows.model, using=choice.rows.db)) is not None:
            what = paused_model(pause) or "--all"
            yield f"Claims are paused; workers take no row before manage.py claimresume {what}."


def add_rows(parser: ArgumentParser, verb: str) -> None:
    """Let a command of the switch turn to rows."""
    parser.add_argument(
        "--rows",
        action="store_true",
        help=f"{verb} rows of one model instead of turning its switch",
    )
    add_choice_of_rows(parser, "with --rows: ")


def refuse_options_of_rows(options: dict[str, Any]) -> None:
    """Refuse what chooses rows where the switch is meant: nobody shall believe that it was heeded."""
    if not options["rows"] and any(options[name] for name in ONLY_WITH_ROWS):
        raise CommandError(
            "--filter, --limit and --dry-run choose rows; say --rows with them.", returncode=USAGE
        )


def act_on_rows(
    command: ClaimCommand, kind: type[StateCommand], models: list[Any], **options: Any
) -> None:
    """Do to the rows of the one model what *kind* does, in the voice of *command*."""
    if len(models) != 1 or options["all"]:
        raise CommandError("--rows takes one model.", returncode=USAGE)
    acting = kind()
    acting.stdout, acting.stderr, acting.style = command.stdout, command.stderr, command.style
    acting.handle(model=models[0], **options)
