"""What the verbs set in the claim columns, by the roles of these; ``ClaimTarget.setting`` makes SQL of it."""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

from django_taskclaim.states import Status


class Computed(Enum):
    """What only the database knows: its clock, and the number stored plus one."""

    NOW, ONE_MORE = range(2)


Columns = Mapping[str, Any]

NOW: Final = Computed.NOW
ONE_MORE: Final = Computed.ONE_MORE

COMPLETED: Columns = {"status": Status.COMPLETE, "completed_at": NOW, "expires_at": None}

FAILED: Columns = {"status": Status.FAILED, "expires_at": None}

#: Open and held by nobody. No token was ever issued for the iteration.
OPEN_AGAIN: Columns = {
    "status": Status.OPEN,
    "claimed_at": None,
    "expires_at": None,
    "iteration": ONE_MORE,
    "claimed_by": None,
}

#: Without the failures of the row.
AS_NEW: Columns = {"attempts": 0, "last_error": "", "error_class": ""}

#: Held by somebody else, whose name and lease are to be added, as a claim of its own.
HELD_BY_ANOTHER: Columns = {"claimed_at": NOW, "iteration": ONE_MORE}
