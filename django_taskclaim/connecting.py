"""Connections of threads that serve leases: of their own, never the pool's, and given up when they broke.

Also the mark of views that stay out of ``ATOMIC_REQUESTS``: admin and review pages commit what they tell of.
"""

import copy
import threading
import weakref
from collections.abc import Callable, Container
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.db.transaction import non_atomic_requests
from django.db.utils import load_backend
from django.http.response import HttpResponseBase

from django_taskclaim.db import dialect_for

View = TypeVar("View", bound=Callable[..., HttpResponseBase])


def use_own_connection(using: str) -> None:
    """Give the calling thread a connection outside Django's pool, with short timeouts.

    A pool whose connections are all busy in handlers would starve the renewal of their leases.
    """
    settings: dict[str, Any] = copy.deepcopy(connections.settings[using])
    settings["OPTIONS"].pop("pool", None)
    settings["OPTIONS"] = settings["OPTIONS"] | dialect_for(connections[using]).service_options()
    settings["CONN_MAX_AGE"] = None
    connections[using] = load_backend(settings["ENGINE"]).DatabaseWrapper(settings, using)


#: Where a connection keeps its session as it was opened, and what tells it from all others of the server.
SESSION = "_taskclaim_session"


def end_session_of(thread: int | None, using: str) -> bool:
    """End, from the calling thread's connection, the session that another thread works on; False if it has none.

    What that thread wrote and has not committed is undone, and the rows it has locked are free. A session that the
    thread has closed, or given back to a pool, is left alone.
    """
    opened = _opened.get(thread or 0, {}).get(using)
    connection = None if opened is None else opened()
    if connection is None or connection.closed_in_transaction:
        return False
    session, mark = vars(connection).get(SESSION, (None, None))
    if mark is None or session is not connection.connection:
        return False
    return dialect_for(connections[using]).end_session(mark)


#: The connections that each guarded thread has opened, by alias.
_opened: dict[int, dict[str, "weakref.ref[BaseDatabaseWrapper]"]] = {}


class _GuardedThread(threading.local):
    """What the connections of this thread are for; those of the main thread are not looked at."""

    #: None in a thread that is not guarded.
    idle: timedelta | None = None
    ours_alone = False
    #: Whether the thread runs an atomic handler; None as long as it has run none.
    atomic: bool | None = None


_this_thread = _GuardedThread()


def guard_connections(idle: timedelta, *, ours_alone: bool) -> None:
    """Have every connection that the calling thread opens end transactions that stay idle for so long.

    Those that are open under another bound are closed, for each is guarded as it is opened; what is inside a
    transaction keeps its bound. To be called again whenever the bound may have changed; where it has not, that costs
    nothing.
    """
    for alias in connections if _schema else ():
        # Before it connects: a handler may ask for the tenant first.
        _enter_schema(connections[alias])
    if _this_thread.idle == idle:
        return
    _this_thread.idle, _this_thread.ours_alone = idle, ours_alone
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            drop_broken(connection.alias)


def has_opened(thread: int) -> bool:
    """Say whether a guarded thread has opened connections since it last closed all of them."""
    return bool(_opened.get(thread))


def _guard(connection: BaseDatabaseWrapper, **kwargs: object) -> None:
    if _this_thread.idle is None:
        return
    _opened.setdefault(threading.get_ident(), {})[connection.alias] = weakref.ref(connection)
    vars(connection)[SESSION] = connection.connection, dialect_for(connection).session_mark()
    _end_idle_transactions(connection, _this_thread.idle)


def _end_idle_transactions(connection: BaseDatabaseWrapper, idle: timedelta) -> None:
    dialect_for(connection).end_idle_transactions(
        idle, ours_alone=_this_thread.ours_alone, atomic=_this_thread.atomic
    )


def begin_handler(using: str, *, atomic: bool) -> None:
    """Have the server end what a frozen handler leaves open on the calling thread's connection, and no healthy one.

    MySQL knows idle sessions only: a plain handler that thinks between two queries must not be cut off, an atomic one
    must.
    """
    if bool(_this_thread.atomic) == atomic:
        return
    _this_thread.atomic = atomic
    connection = connections[using]
    if _this_thread.idle is None or connection.connection is None:
        return
    ensure_usable(using)
    if connection.connection is not None:
        _end_idle_transactions(connection, _this_thread.idle)


connection_created.connect(_guard, dispatch_uid="django_taskclaim.guard")

#: The schema of the tenant that this process works for, where django-tenants chose one for the command.
_schema: str | None = None
_ENTERED = "_taskclaim_schema"


def work_in_schema(name: str | None) -> None:
    """Have all threads of this process work in the schema *name* of django-tenants, which knows one thread's only."""
    global _schema
    _schema = name


def _enter_schema(connection: Any, **kwargs: object) -> None:
    # Once: a handler may leave the schema, and its connection may break there.
    if _schema and hasattr(connection, "set_schema") and _ENTERED not in vars(connection):
        vars(connection)[_ENTERED] = _schema
        if connection.schema_name != _schema:
            connection.set_schema(_schema)


connection_created.connect(_enter_schema, dispatch_uid="django_taskclaim.schema")


def ensure_usable(using: str) -> None:
    """Replace the thread's connection if the server has ended it while there was nothing to do."""
    connection = connections[using]
    if connection.connection is not None and not connection.is_usable():
        connection.close()


def ensure_all_usable() -> None:
    """Replace those of the thread's connections that the server has ended."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            ensure_usable(connection.alias)


def drop_broken(using: str) -> None:
    """Close the thread's connection after an error, so that the next statement opens a new one."""
    connection = connections[using]
    # Closing a connection that the server has cut may raise; the wrapper has forgotten it all the same.
    with suppress(Exception):
        connection.close()
    if connection.in_atomic_block:
        # Such a wrapper stays closed until its block is left, which nobody will do.
        del connections[using]


def close_all() -> None:
    """Close the thread's connections; a thread that ends leaves them open otherwise."""
    connections.close_all()
    _opened.pop(threading.get_ident(), None)


def call_and_close(work: Callable[..., object], *args: object) -> None:
    """Do some work, and close the connections that the thread has opened, however that ends."""
    try:
        work(*args)
    finally:
        close_all()


def start_thread(name: str, work: Callable[..., object], *args: object) -> threading.Thread:
    """Start a thread that does some work and then closes the connections that it has opened."""
    thread = threading.Thread(target=call_and_close, args=[work, *args], daemon=True)
    thread.name = f"taskclaim-{name}"
    thread.start()
    return thread


def left_open(*, but_for: Container[str] = ()) -> list[str]:
    """Return the aliases on which the thread's last row left a transaction open, and forget those connections.

    Those in *but_for* are somebody else's affair.
    """
    unclean = [
        connection
        for connection in connections.all(initialized_only=True)
        if connection.alias not in but_for
        and (connection.in_atomic_block or _commits_nothing(connection))
    ]
    for connection in unclean:
        # Their hooks will not run; a claim that waits for one would seem to have ended.
        connection.run_on_commit = []
        drop_broken(connection.alias)
    return [connection.alias for connection in unclean]


def _commits_nothing(connection: Any) -> bool:
    usual = bool(connection.settings_dict["AUTOCOMMIT"])
    return connection.connection is not None and connection.autocommit != usual


def tidy_up(*, idle: bool = False) -> None:
    """Leave the thread's connections fit for the next row: healthy, not too old, no query log growing.

    Django's default CONN_MAX_AGE of 0 means the end of each request; for a thread that is done when it is *idle*, so
    that not every row pays for a connection of its own.
    """
    for connection in connections.all(initialized_only=True):
        connection.queries_log.clear()
        if idle or connection.errors_occurred or connection.settings_dict["CONN_MAX_AGE"]:
            connection.close_if_unusable_or_obsolete()


def in_no_transaction(view: View) -> View:
    """Mark a view that acts: ``ATOMIC_REQUESTS`` shall not undo, on any database, what it commits and tells of."""
    for alias in connections:
        view = non_atomic_requests(alias)(view)
    return view
