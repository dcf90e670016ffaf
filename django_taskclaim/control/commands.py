"""Commands that a person gives to one worker process. Each is recorded as an act."""

from collections.abc import Mapping
from typing import Any

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.db import DatabaseError, Error, connections, models
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_taskclaim.claim import clock
from django_taskclaim.columns import claim_columns
from django_taskclaim.control.actions import WORKER_ACTIONS
from django_taskclaim.control.audit import record_action, storable
from django_taskclaim.control.models import APP, WorkerCommand, is_on
from django_taskclaim.db import DatabaseNow
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.formatting import first_line, format_number
from django_taskclaim.models import WorkerProcess
from django_taskclaim.monitoring.overview import Worker, workers
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.querysets.isolating import refusals
from django_taskclaim.states import WORKER_MARK


class PutBackRefused(TaskClaimError):
    """Not all rows of a silent process could be put back: ``put_back`` were.

    ``errors`` holds what was said, by the label of each model that it was said of.
    """

    def __init__(self, worker: str, put_back: int, errors: Mapping[str, Exception]) -> None:
        self.worker, self.put_back, self.errors = worker, put_back, dict(errors)
        super().__init__(worker, put_back, self.errors)

    def __str__(self) -> str:
        refused = "; ".join(f"{label}: {first_line(error)}" for label, error in self.errors.items())
        sentence = ngettext(
            "Of the silent worker process %(worker)s, %(n)s row was put back, and then refused: %(errors)s",
            "Of the silent worker process %(worker)s, %(n)s rows were put back, and then refused: %(errors)s",
            self.put_back,
        )
        return sentence % {
            "worker": self.worker,
            "n": format_number(self.put_back),
            "errors": refused,
        }


def send_command(
    worker_name: str, command: str, *, by: str, user: object = None, reason: str = "", using: str
) -> WorkerCommand:
    """Tell one worker process to ``drain``, ``stop`` or ``release``; it obeys within five seconds.

    A process that fell silent hears nothing: its rows are released here and now, all of them, and any other command is
    a ValidationError, as is an unknown one. Each model that it serves gets an act with its own rows. Raises
    ``WorkerProcess.DoesNotExist`` for a name that is not listed, and ``PutBackRefused`` where rows of one model could
    not be put back; those of the others were, and the command is at its end all the same.
    """
    _require(using)
    action = WORKER_ACTIONS.get(command)
    if action is None:
        known = ", ".join(WORKER_ACTIONS)
        given = {"command": repr(command), "commands": known}
        raise ValidationError(
            _("A worker cannot be told to %(command)s; it knows %(commands)s.") % given
        )
    worker = _worker(worker_name, using)
    if not worker.alive and command != "release":
        raise ValidationError(
            _(
                "%(worker)s has said nothing for a while, so it would not hear that; release its rows instead."
            )
            % {"worker": worker.name}
        )
    sent = WorkerCommand.objects.using(using).create(
        worker=worker.name,
        command=command,
        reason=storable(reason, 500),
        by=storable(by, 200),
        at=DatabaseNow(),
    )
    # In the language of the person who gave the command, as the reason is.
    why = f"{action.label}: {reason}" if reason else str(action.label)
    facts: dict[str, Any] = {"by": by, "reason": why, "user": user, "using": using}
    if worker.alive:
        for model in _tables_of(worker):
            record_action(model, "worker command", worker=worker.name, **facts)
    else:
        sent.put_back = _release_all(worker, sent, facts)
    sent.refresh_from_db(using=using)
    return sent


def _worker(name: str, using: str) -> Worker:
    found = next((worker for worker in workers(using) if worker.name == name), None)
    if found is None:
        raise WorkerProcess.DoesNotExist(
            _("No worker is listed as %(name)s.") % {"name": repr(name)}
        )
    return found


def _release_all(worker: Worker, sent: WorkerCommand, facts: dict[str, Any]) -> int:
    """Put back all that a silent process holds, and end the command; what one table refuses keeps no other from it."""
    put_back, errors = 0, {}
    for model in _tables_of(worker):
        rows, error = _take_back(model, worker, facts["using"])
        if model is not None and error is not None:
            errors[model._meta.label] = error
        put_back += rows
        record_action(model, "worker command", rows=rows, worker=worker.name, **facts)
    same = type(sent).objects.using(facts["using"]).filter(pk=sent.pk)
    same.update(done_at=DatabaseNow())
    if errors:
        raise PutBackRefused(worker.name, put_back, errors)
    return put_back


def models_of(worker: Worker) -> list[type[models.Model]]:
    """Return the models that a worker claims, as far as this project still has them."""
    found = []
    for label in worker.labels:
        try:
            model = apps.get_model(label)
            claim_columns(model)
        except (LookupError, ValueError, TypeError):
            continue
        found.append(model)
    return found


def _tables_of(worker: Worker) -> list[type[models.Model] | None]:
    """Return one model of each table that a worker claims from; None, which means all, where none is known."""
    tables = {claim_columns(model).owner: model for model in models_of(worker)}
    return list(tables.values()) or [None]


def _take_back(
    model: type[models.Model] | None, worker: Worker, using: str
) -> tuple[int, Exception | None]:
    """Put back every row that a dead process holds; by the token, so that its late writes land nowhere.

    Returns how many, and what the database said where that was not all.
    """
    if model is None:
        return 0, None
    holder = claim_columns(model).claimed_by.name
    rows: ClaimQuerySet[Any] = ClaimQuerySet(model, using=using)
    began, counts = clock(), [0]
    try:
        held = rows.filter(**{f"{holder}__startswith": holders_of(worker.name)})
        held.take_back(progress=counts.append)
        refused = refusals(model, using, since=began)
        return counts[-1], DatabaseError(str(refused[0])) if refused else None
    except (Error, TaskClaimError) as error:
        if not connections[using].in_atomic_block:
            connections[using].close_if_unusable_or_obsolete()
        return counts[-1], error


def holders_of(process: str) -> str:
    """Return how the holder of every claim begins that a process makes, by the name that it reports under."""
    return f"{process}{WORKER_MARK}"


def open_commands(using: str) -> list[WorkerCommand]:
    """Return what workers were told to do and have not done yet; not what an earlier one of the name was told."""
    named = WorkerProcess.objects.using(using).filter(name=models.OuterRef("worker"))
    heard = models.Q(at__gte=models.Subquery(named.values("started_at")))
    return list(WorkerCommand.objects.using(using).filter(heard, done_at=None).order_by("pk"))


def _require(using: str) -> None:
    if not is_on(using):
        raise ImproperlyConfigured(
            f"Commands need the tables of {APP} on the database {using!r}: add it to INSTALLED_APPS,"
            " let routers migrate it there, and run manage.py migrate."
        )
