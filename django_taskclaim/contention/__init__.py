"""Lock timeouts, deadlocks and serialization failures: recognised, and tried again where that is safe.

A retry is safe where it repeats everything the database has undone, and a deadlock undoes the whole
transaction (error 1213 of MySQL and MariaDB, where Django does not even notice). So only the code that opened
the outermost transaction may repeat a try: here each try opens one of its own, and where the caller has
opened one already the error is passed on and that transaction marked for rollback. Django's ``TestCase``
counts as such a caller, for a deadlock takes away what it had set up.

``retry_on_contention`` decorates functions and calls them; ``Retriable`` stands in front of any object,
after the idea of database gateways wrapped so that none of their callers has to think of deadlocks.
"""

from django_taskclaim.contention.codes import contention_code, refusal_code, server_code
from django_taskclaim.contention.retry import (
    ContentionRetry,
    Retriable,
    contention_retried,
    retry_on_contention,
)

__all__ = [
    "ContentionRetry",
    "Retriable",
    "contention_code",
    "contention_retried",
    "refusal_code",
    "retry_on_contention",
    "server_code",
]
