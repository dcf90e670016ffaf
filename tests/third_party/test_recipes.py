"""What holds for all of ``docs/third-party.md``."""

import pytest
from django.core.checks import run_checks


@pytest.mark.django_db(databases="__all__")
def test_no_check_of_ours_complains() -> None:
    assert [found for found in run_checks() if (found.id or "").startswith("taskclaim")] == []
