"""What the tests ask of a row beside the packages' own calls."""

from typing import Any


def facts(row: Any) -> dict[str, Any]:
    """Return the stored claim columns of a row, by their roles."""
    again = type(row)._base_manager.get(pk=row.pk)
    present = {field.name for field in again._meta.fields}
    return {
        role: getattr(again, name) for role, name in row.claim_fields.items() if name in present
    }


def assert_open(row: Any) -> None:
    now = facts(row)
    wanted = {"status": "open", "iteration": 0, "attempts": 0, "claimed_by": None}
    assert now | wanted == now
