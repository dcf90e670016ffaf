"""Leases on a name rather than on a row, for any critical section: a lock that a dead holder cannot keep.

After the idea of a distributed lock whose time to live a background thread keeps extending. The protocol is that of
the rows: a token names each hold for ever, every write carries it, only the database's clock decides, and a process
that cannot renew takes its lease for lost before it ends.
"""

from django_taskclaim.leases.blocks import LeaseBlock, named_lease, synchronized
from django_taskclaim.leases.held import HeldLease, LeaseLost
from django_taskclaim.leases.rows import LeaseRows

__all__ = ["HeldLease", "LeaseBlock", "LeaseLost", "LeaseRows", "named_lease", "synchronized"]
