"""Commands over many rows of a model: they count, ask, go chunk by chunk, and record."""

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from django.core.management.base import CommandError
from django.db.models import Q

from django_taskclaim.claim import clock
from django_taskclaim.control.actions import Action
from django_taskclaim.control.audit import record_action
from django_taskclaim.formatting import counted
from django_taskclaim.management.base import ONE, ClaimCommand, whole_number
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.querysets.isolating import refusals
from django_taskclaim.worker.options import condition_of

#: Seconds between two lines that say how far a command has got.
SAY_EVERY = 10.0


class RowsCommand(ClaimCommand):
    """Does an action of the registry to the rows of one model that were chosen."""

    takes = ONE
    filters = "only rows"
    is_recorded = True

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        add = parser.add_argument
        add("--limit", type=whole_number, metavar="N", help="at most N rows (default: all)")
        add("--dry-run", action="store_true", help="count, say what would be done, do nothing")
        text = "do not ask; off a terminal nobody is asked anyway"
        add("--noinput", "--no-input", dest="interactive", action="store_false", help=text)

    def act(
        self,
        action: Action,
        which: str,
        condition: Q,
        warnings: Sequence[str],
        how: dict[str, Any],
        **options: Any,
    ) -> None:
        """Count the rows that match *condition*, in words *which*; ask, and do *action* to them.

        *how* has the arguments of its verb.
        """
        ((model, alias),) = self.where
        label, filters, limit = model._meta.label, options["filters"], options["limit"]
        rows = ClaimQuerySet[Any](model, using=alias)
        rows = rows.filter(condition, *(condition_of(text, model) for text in filters))
        which, matching = ", ".join([which, *filters]), rows.progress().total
        if not matching:
            self.stdout.write(f"{label}: no row matches ({which}).")
            return
        self.stdout.write(f"{label}: {counted(matching, 'row')} ({which}).")
        for sentence in warnings:
            self.stdout.write(self.style.WARNING(sentence))
        wanted = min(matching, limit or matching)
        question = f"{action.label} {counted(wanted, 'row')}"
        if options["dry_run"]:
            self.stdout.write(f"{question}: not done, --dry-run.")
            return
        if options["interactive"] and not _is_agreed(question):
            self.stdout.write("Nothing was done.")
            return
        began = self.said_at = clock()
        self.seen = 0
        advance = partial(self._advance, wanted)
        try:
            self.seen = action.run(rows, limit=limit, progress=advance, **how)
        finally:
            # Also where it was stopped: that much is committed.
            done = f"{str(action.done).capitalize()} {counted(self.seen, 'row')} of {label}"
            rest = wanted - self.seen
            left = f"; {counted(rest, 'row')} left as found" if rest > 0 else ""
            self.stdout.write(self.style.SUCCESS(f"{done}{left}."))
            if self.seen:
                reason = f"{which}, {limit:,} at most" if limit else which
                reason += f": {options['reason']}" if options["reason"] else ""
                facts = {"by": options["by"], "reason": reason, "using": alias}
                record_action(model, action.name, rows=self.seen, **facts)
        if refused := refusals(model, alias, since=began):
            raise CommandError("\n".join(map(str, refused)))

    def _advance(self, total: int, seen: int) -> None:
        """Note how many rows have been seen, and say so now and then."""
        self.seen = seen
        if clock() - self.said_at >= SAY_EVERY:
            self.said_at = clock()
            self.stdout.write(f"{seen:,} of {total:,}")
            self.stdout.flush()


def _is_agreed(question: str) -> bool:
    """Ask the person at the terminal; without a terminal nobody is asked."""
    if sys.stdin is None or not sys.stdin.isatty():
        return True
    with suppress(EOFError):
        return input(f"{question}? [y/N] ").strip().lower() in ("y", "yes")
    return False
