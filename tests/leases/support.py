"""What the tests of named leases look at: the stored row, and holders in other threads."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.leases import is_free, named_lease
from django_taskclaim.models import NamedLease
from tests.querysets.support import clock, execute

TABLE = NamedLease._meta.db_table


def stored(name: str, using: str = "default") -> Any:
    """Return the row of a lease as it is stored."""
    return NamedLease.objects.using(using).get(name=name)


def is_held(name: str, using: str = "default") -> bool:
    """Ask the database, by its own clock, whether anybody holds the lease."""
    row = NamedLease.objects.using(using).filter(name=name)
    return row.exists() and not row.filter(is_free()).exists()


def set_moment(name: str, column: str, offset: str) -> None:
    """Move a moment of a lease to a while from the database's own now, by SQL."""
    statement = f"UPDATE {TABLE} SET {column} = {clock(offset)} WHERE name = %s"
    assert execute(statement, [name]) == 1


def expire(name: str) -> None:
    set_moment(name, "expires_at", "-1 SECOND")


@contextmanager
def ends_lost(name: str, **options: Any) -> Iterator[named_lease]:
    """Run a block that raises at its end that its lease was lost."""
    block = named_lease(name, **options)
    yield block.__enter__()
    with pytest.raises(ClaimLost, match=f"'{name}': the lease"):
        block.__exit__(None, None, None)


def renewer_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "taskclaim-leases"]
