"""Commands that a person gives to one worker process. Each is recorded as an act."""

from typing import Any

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import models, transaction
from django.utils.translation import gettext as _

from django_taskclaim.columns import claim_columns, has_claim_columns
from django_taskclaim.control.actions import WORKER_COMMANDS
from django_taskclaim.control.audit import record_action
from django_taskclaim.control.models import APP, is_on
from django_taskclaim.models import WorkerProcess
from django_taskclaim.monitoring.overview import workers
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.states import WORKER_MARK


def send_command(
    worker_name: str, command: str, *, by: object, reason: str = "", using: str
) -> None:
    """Tell one worker process to ``drain``, ``stop`` or ``release``; it obeys within five seconds.

    Another command replaces one that it has not obeyed yet. Each model that it serves gets an act. Refused inside a
    transaction, as the verbs refuse it. ValueError in one sentence for an unknown command, and for a process
    that is silent or not listed: it would not obey. ImproperlyConfigured if the tables of this app are not on the
    database.
    """
    if not is_on(using):
        raise ImproperlyConfigured(
            f"Commands need the tables of {APP} on the database {using!r}: add it to INSTALLED_APPS, let routers"
            " migrate it there, and run manage.py migrate."
        )
    action = WORKER_COMMANDS.get(command)
    if action is None:
        given = {"command": repr(command), "commands": ", ".join(WORKER_COMMANDS)}
        raise ValueError(
            _("A worker cannot be told to %(command)s; it knows %(commands)s.") % given
        )
    worker = next((one for one in workers(using) if one.name == worker_name), None)
    if worker is None:
        raise ValueError(_("No worker is listed as %(name)s.") % {"name": repr(worker_name)})
    if not worker.alive:
        text = _("%(worker)s has been silent for a while, and would not obey. Release its rows.")
        raise ValueError(text % {"worker": worker.name})
    # A lock that is kept on this row would keep the process from its reports, and its leases.
    with transaction.atomic(using=using, durable=True):
        WorkerProcess.objects.using(using).filter(name=worker.name).update(command=command)
    # In the language of the person who gave the command, as the reason is.
    why = f"{action.label}: {reason}" if reason else str(action.label)
    facts: dict[str, Any] = {"by": by, "reason": why, "using": using}
    for model in tables_of(worker):
        record_action(model, "worker command", key=worker.name, **facts)


def rows_held_by(
    worker: WorkerProcess, model: type[models.Model], using: str
) -> ClaimQuerySet[Any]:
    """Return the rows of *model* that a process holds: to ``take_back()`` those of one that is dead."""
    holder = claim_columns(model).claimed_by.name
    rows: ClaimQuerySet[Any] = ClaimQuerySet(model, using=using)
    return rows.filter(**{f"{holder}__startswith": f"{worker.name}{WORKER_MARK}"})


def models_of(worker: WorkerProcess) -> list[type[models.Model]]:
    """Return the models that a worker claims, as far as this project still has them."""
    return [one for one in apps.get_models() if has_claim_columns(one) and worker.serves(one)]


def tables_of(worker: WorkerProcess) -> list[type[models.Model]]:
    """Return one model of each table that a worker claims from."""
    return list({claim_columns(model).owner: model for model in models_of(worker)}.values())
