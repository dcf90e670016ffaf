"""A worker whose code is ahead of the database ends at once, and says what is missing."""

from typing import Any

import pytest
from django.core.management import CommandError

from tests.adoption.conftest import Project
from tests.querysets.support import execute

pytestmark = [pytest.mark.once, pytest.mark.django_db(transaction=True)]


def test_a_worker_works_only_once_the_migrations_have_run(project: Project, parcel: Any) -> None:
    """Exit code 1, so that its supervisor starts it again."""
    project.adopt("adoption.Parcel")
    drain = ("claimworker", "adoption.Parcel", "--in-process", "--drain")
    with pytest.raises(CommandError, match=r"cannot be read: .*manage.py migrate adopt") as early:
        project.run(*drain)
    assert early.value.returncode == 1
    project.migrate()
    execute("INSERT INTO adoption_parcel (address) VALUES ('new')")
    project.run(*drain)
    assert set(parcel.objects.values_list("address", "status")) == {
        *((f"old {number}", "paused") for number in range(5)),
        ("new", "complete"),
    }
