"""What hangs on a table, and what that adds to the cost of each claim."""

from collections.abc import Iterator
from datetime import timedelta

from django.db import models

from django_taskclaim.dialects.around import Hangers, around
from django_taskclaim.doctor.findings import Finding
from django_taskclaim.links import is_companion
from django_taskclaim.policy import policy_for
from django_taskclaim.querysets.scope import Desk
from django_taskclaim.wording import counted, lasting, listed

#: Partitions from which on a companion is the better choice: each claim looks into all of them.
MANY_PARTITIONS = 16


def hanging_on(model: type[models.Model], alias: str) -> Iterator[Finding]:
    """Yield what each claim of *model* brings about beside itself, and what would be better."""
    desk = Desk.of(model, alias)
    hangers = around(desk.dialect).hangers(desk.table)
    advice = "" if is_companion(model) else _instead(model)
    if hangers.triggers:
        yield Finding.note(_told_triggers(hangers, policy_for(model).lease / 4), advice)
    if hangers.publications:
        yield Finding.note(_told_publications(hangers), advice)
    if hangers.partitions:
        yield Finding.note(
            f"The table has {counted(hangers.partitions, 'partition')}, and a claim looks for open rows in each.",
            advice if hangers.partitions >= MANY_PARTITIONS else "",
        )


def _told_triggers(hangers: Hangers, renewal: timedelta) -> str:
    several = len(hangers.triggers) > 1
    return (
        f"The row trigger{'s' if several else ''} {listed(hangers.triggers)} {'fire' if several else 'fires'} twice for"
        " each row that is done, at its claim and at its completion, once more for each failure, and every"
        f" {lasting(renewal)} for each row that is held longer."
    )


def _told_publications(hangers: Hangers) -> str:
    what = "publication" if len(hangers.publications) == 1 else "publications"
    return (
        f"The {what} {listed(hangers.publications)} {'sends' if what == 'publication' else 'send'} each change of a row"
        " to subscribers: two for each row that is done, and one for each renewal."
    )


def _instead(model: type[models.Model]) -> str:
    return (
        f"A companion keeps these updates off the table: class {model.__name__}Task(SourceMixin, TaskMixin), see"
        " docs/companions.md."
    )
