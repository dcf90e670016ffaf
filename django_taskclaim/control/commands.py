"""Commands that a person gives to one worker process. Each is recorded as an act."""

from typing import Any

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.db import Error, connections, models
from django.utils.translation import gettext as _

from django_taskclaim.claim import clock
from django_taskclaim.columns import claim_columns, has_claim_columns
from django_taskclaim.control.actions import WORKER_COMMANDS
from django_taskclaim.control.audit import record_action, storable
from django_taskclaim.control.models import APP, WorkerCommand, is_on
from django_taskclaim.db import DatabaseNow
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.formatting import first_line
from django_taskclaim.models import WorkerProcess
from django_taskclaim.monitoring.overview import workers
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.querysets.isolating import refusals
from django_taskclaim.states import WORKER_MARK


def send_command(
    worker_name: str, command: str, *, by: str, user: object = None, reason: str = "", using: str
) -> WorkerCommand:
    """Tell one worker process to ``drain``, ``stop`` or ``release``; it obeys within five seconds.

    A silent process obeys nothing: ``release`` puts all its rows back here and now, and any other command is a
    ValidationError, as is an unknown one. Each model that it serves gets an act with its own rows. What is returned
    says how many rows were ``put_back``, and in ``refused``, by model, why the database did not let all be. Raises
    ``WorkerProcess.DoesNotExist`` for a name that is not listed, and ImproperlyConfigured if the tables of this app
    are not on the database.
    """
    if not is_on(using):
        raise ImproperlyConfigured(
            f"Commands need the tables of {APP} on the database {using!r}: add it to INSTALLED_APPS, let routers"
            " migrate it there, and run manage.py migrate."
        )
    action = WORKER_COMMANDS.get(command)
    if action is None:
        given = {"command": repr(command), "commands": ", ".join(WORKER_COMMANDS)}
        raise ValidationError(
            _("A worker cannot be told to %(command)s; it knows %(commands)s.") % given
        )
    worker = next((one for one in workers(using) if one.name == worker_name), None)
    if worker is None:
        raise WorkerProcess.DoesNotExist(
            _("No worker is listed as %(name)s.") % {"name": repr(worker_name)}
        )
    if not worker.alive and command != "release":
        text = _("%(worker)s has been silent for a while, and would not obey. Release its rows.")
        raise ValidationError(text % {"worker": worker.name})
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
        _release_all(worker, sent, facts)
    sent.refresh_from_db(using=using)
    return sent


def _release_all(worker: WorkerProcess, sent: WorkerCommand, facts: dict[str, Any]) -> None:
    """Put back all rows of a silent process, and end the command; a refusal of one table stops no other."""
    sent.put_back = 0
    for model in _tables_of(worker):
        rows, error = _take_back(model, worker, facts["using"])
        sent.put_back += rows
        if error:
            sent.refused = [*sent.refused, f"{model._meta.label}: {error}"]
        record_action(model, "worker command", rows=rows, worker=worker.name, **facts)
    same = type(sent).objects.using(facts["using"]).filter(pk=sent.pk)
    same.update(done_at=DatabaseNow())


def _take_back(model: type[models.Model], worker: WorkerProcess, using: str) -> tuple[int, str]:
    """Put back every row that a dead process holds, by the token, so that its late writes land nowhere.

    Returns how many, and what the database said where that was not all.
    """
    holder = claim_columns(model).claimed_by.name
    rows: ClaimQuerySet[Any] = ClaimQuerySet(model, using=using)
    held = rows.filter(**{f"{holder}__startswith": f"{worker.name}{WORKER_MARK}"})
    began, counts = clock(), [0]
    try:
        held.take_back(progress=counts.append)
    except (Error, TaskClaimError) as error:
        if not connections[using].in_atomic_block:
            connections[using].close_if_unusable_or_obsolete()
        return counts[-1], first_line(error)
    refused = refusals(model, using, since=began)
    return counts[-1], str(refused[0]) if refused else ""


def models_of(worker: WorkerProcess) -> list[type[models.Model]]:
    """Return the models that a worker claims, as far as this project still has them."""
    return [one for one in apps.get_models() if has_claim_columns(one) and worker.serves(one)]


def _tables_of(worker: WorkerProcess) -> list[type[models.Model]]:
    """Return one model of each table that a worker claims from."""
    return list({claim_columns(model).owner: model for model in models_of(worker)}.values())


def open_commands(using: str) -> list[WorkerCommand]:
    """Return the commands that are not done yet; those to an earlier process of the same name are left out."""
    named = WorkerProcess.objects.using(using).filter(name=models.OuterRef("worker"))
    is_own = models.Q(at__gte=models.Subquery(named.values("started_at")))
    return list(WorkerCommand.objects.using(using).filter(is_own, done_at=None).order_by("pk"))
