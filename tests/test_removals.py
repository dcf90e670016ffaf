"""What ``python -m tests.removals`` takes out is still there to be taken out."""

import pytest

from tests.removals import REMOVALS, ROOT, Removal


@pytest.mark.parametrize("removal", REMOVALS, ids=lambda removal: removal.name)
def test_a_removal_still_finds_its_text(removal: Removal) -> None:
    """Each text stands once in its file, and what it becomes is Python."""
    for path, changes in removal.changes.items():
        text = (ROOT / "django_taskclaim" / path).read_text()
        for old, new in changes:
            assert text.count(old) == 1
            text = text.replace(old, new)
        compile(text, path, "exec")
