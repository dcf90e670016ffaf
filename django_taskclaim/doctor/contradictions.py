"""Rows in combinations of claim columns that no verb leaves behind: what else has written there, and what helps."""

from collections.abc import Iterator

from django.db import models

from django_taskclaim.doctor.findings import Finding
from django_taskclaim.querysets import ClaimQuerySet, repairing
from django_taskclaim.wording import counted


def contradictions(model: type[models.Model], alias: str) -> Iterator[Finding]:
    """Yield what rows of *model* contradict themselves in; reads every row once."""
    rows: ClaimQuerySet[models.Model] = ClaimQuerySet(model, using=alias)
    for name, found in repairing.count(rows).items():
        yield Finding.problem(
            f"{counted(found, 'row')} of {model._meta.label} {_are(found)} {name}: something that is no verb of ours"
            " wrote there.",
            f"manage.py claimdoctor {model._meta.label} --repair",
        )


def repair(model: type[models.Model], alias: str) -> Iterator[tuple[int, str]]:
    """Put them right, and yield how many rows that were, and what was done to them."""
    rows: ClaimQuerySet[models.Model] = ClaimQuerySet(model, using=alias)
    for name, done in rows.repair().items():
        yield done, f"{counted(done, 'row')} {_were(done)} {name}: {_DONE[name]}."


#: What each repair comes to.
_DONE = dict(
    zip(
        (one.name for one in repairing.CONTRADICTIONS),
        (
            "put back as if the lease had ended",
            "open, and held by nobody",
            "paused, and held by nobody",
            "the lease is gone",
        ),
        strict=True,
    )
)


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _were(count: int) -> str:
    return "was" if count == 1 else "were"
