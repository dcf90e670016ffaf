"""The job that does nothing, once for each peer that wants it as a function of its own; see ``side`` for the others."""

from django.conf import settings
from django.tasks import task


def nothing(number: int = 0) -> None:
    """Do nothing."""


@task
def nothing_of_tasks_db() -> None:
    """Do nothing."""


@task(backend="ox")
def nothing_of_ox() -> None:
    """Do nothing."""


if settings.HAS_NOTIFY:
    from reliable_outbox import job

    nothing_of_outbox = job(name="nothing")(nothing)
