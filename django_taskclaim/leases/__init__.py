"""Leases on a name rather than on a row, for any critical section: a lock that a dead holder cannot keep.

After the idea of a distributed lock whose time to live a background thread keeps extending. The protocol is that of
the rows. A token names each hold for ever, and every write carries it. Only the database's clock decides. A process
that cannot renew treats its lease as lost before it ends.
"""

from django_taskclaim.leases.named import HeldLease, named_lease
from django_taskclaim.leases.rows import LeaseRows

__all__ = ["HeldLease", "LeaseRows", "named_lease"]
