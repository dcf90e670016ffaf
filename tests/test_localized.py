"""Moments on the admin's pages follow the formats of the reader's language."""

from datetime import datetime

import pytest
from django.utils import translation

from django_taskclaim import localized


@pytest.mark.once
@pytest.mark.parametrize(
    ("language", "shown"),
    [("en", "2026-05-04 14:02"), ("de", "4. Mai 2026 14:02"), ("fi", "4. toukokuuta 2026 14.02")],
)
def test_a_moment_follows_the_language(language: str, shown: str) -> None:
    with translation.override(language):
        assert localized.clock_time(datetime(2026, 5, 4, 14, 2, 5)) == shown
