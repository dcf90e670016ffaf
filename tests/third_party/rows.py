"""What the tests ask of a row beside the packages' own calls."""

from typing import Any


def facts(row: Any) -> dict[str, Any]:
    """Return the stored claim columns of a row, by their roles."""
    again = type(row)._base_manager.get(pk=row.pk)
    present = {field.name for field in again._meta.fields}
    return {
        role: getattr(again, name) for role, name in row.claim_fields.items() if name in present
    }


def lose(row: Any) -> Any:
    """Let an operator put the row back and a person claim it; return it as that one has it."""
    rows = type(row).objects.filter(pk=row.pk)
    assert rows.reset(running=True) == 1
    (taken,) = rows.claim_batch(1, claimed_by="user:next")
    return taken


def assert_open(row: Any) -> None:
    now = facts(row)
    wanted = {"status": "open", "iteration": 0, "attempts": 0, "claimed_by": None}
    assert now | wanted == now
