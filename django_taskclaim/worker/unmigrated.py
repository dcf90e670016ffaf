"""Migrations that a worker waits for: its code is ahead of the database until they have run."""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from django.apps import apps
from django.db import Error, connections, router
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.migration import Migration

from django_taskclaim.adoption.operations import RequireComplete
from django_taskclaim.claim import clock
from django_taskclaim.formatting import first_line, listed
from django_taskclaim.links import is_companion, source_link
from django_taskclaim.worker.health import HealthFile
from django_taskclaim.worker.options import WorkerOptions

logger = logging.getLogger("django_taskclaim.worker")

#: Seconds between two looks.
EVERY = 2.0

#: Our apps that a worker writes to.
OURS = ("taskclaim", "taskclaim_control")


def pending_migrations(models: Iterable[object], using: str, *, lacking: bool) -> list[str]:
    """Return the migrations of these models' apps, and of our apps, that the database *using* has not had yet.

    Those that wait for rows to be complete, and what follows them, are none to wait for: each would wait for the other.
    An app of which the database has had none at all counts only where tables are *lacking*: it was made by other means.
    """
    try:
        loader = MigrationLoader(connections[using])
    except Error:
        raise
    except Exception as error:
        # Somebody else's broken migration is no reason to do nothing.
        logger.warning("The migrations cannot be looked at: %s", first_line(error))
        return []
    labels = {label for label in _labels(models, using) if router.allow_migrate(using, label)}
    known = {app for app, _name in loader.applied_migrations}
    looked_at = {label for label in labels & loader.migrated_apps if lacking or label in known}
    plan = [node for leaf in loader.graph.leaf_nodes() for node in loader.graph.forwards_plan(leaf)]
    held_up = _held_up(loader, plan)
    return [
        f"{app}.{name}"
        for app, name in dict.fromkeys(plan)
        if app in looked_at
        and (app, name) not in loader.applied_migrations
        and (app, name) not in held_up
    ]


def _held_up(loader: MigrationLoader, plan: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return those of *plan* that a guard stops while rows are unfinished, and all that depend on one."""
    found: set[tuple[str, str]] = set()
    for node in plan:
        parents = {parent.key for parent in loader.graph.node_map[node].parents}
        applied = node in loader.applied_migrations
        if not applied and (parents & found or _is_guarded(loader.graph.nodes[node])):
            found.add(node)
    return found


def _is_guarded(migration: Migration | None) -> bool:
    operations = migration.operations if migration is not None else ()
    return any(isinstance(one, RequireComplete) for one in operations)


def _labels(models: Iterable[Any], using: str) -> set[str]:
    """Return the apps whose tables such a worker reads and writes on the database *using*."""
    labels = {label for label in OURS if any(one.label == label for one in apps.get_app_configs())}
    for model in models:
        labels |= {one._meta.app_label for one in (model, *model._meta.get_parent_list())}
        if is_companion(model) and (link := source_link(model)).alias_beside(using) == using:
            labels.add(link.source._meta.app_label)
    return labels


def wait_until_migrated(
    worker: WorkerOptions, pending: Callable[[], Sequence[str]], sleep: Callable[[float], object]
) -> bool:
    """Return once nothing is *pending*, saying once for what it waits; False where the worker's time is over before."""
    using, health, waits = worker.using, HealthFile(worker.health_file), False
    while found := pending():
        if not waits:
            logger.warning(
                "Waiting for migrations of %r: %s. Run manage.py migrate%s; the worker goes on by itself then.",
                *(using, listed(found), "" if using == "default" else f" --database {using}"),
                extra={"event": "waiting", "migrations": list(found)},
            )
        waits = True
        health.touch()
        if worker.ends_at is not None and clock() >= worker.ends_at:
            return False
        sleep(EVERY)
    if waits:
        logger.warning("The migrations have run; going on.", extra={"event": "migrated"})
    return True
