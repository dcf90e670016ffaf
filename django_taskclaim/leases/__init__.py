"""Leases on a name rather than on a row, for any critical section: a lock that a dead holder cannot keep.

The idea is that of a distributed lock whose time to live a background thread extends. The protocol is that of the rows:
a token names each hold for ever and is part of every write, only the database's clock decides, and a process that
cannot renew treats its lease as lost before it ends.
"""

from django_taskclaim.leases.named import HeldLease, named_lease
from django_taskclaim.leases.rows import LeaseRows

__all__ = ["HeldLease", "LeaseRows", "named_lease"]
