"""django-reversion and django-simple-history: versions of claimable rows, and what a revert leaves alone."""

from typing import Any

import pytest
import reversion
from django.utils import timezone
from reversion.models import Version

from django_taskclaim.testing import run_due
from tests.third_party.app.models import Invoice, Letter, Order
from tests.third_party.rows import facts

pytestmark = pytest.mark.django_db


def saved(row: Any, **values: Any) -> Any:
    """Save the row in a revision of its own."""
    for name, value in values.items():
        setattr(row, name, value)
    with reversion.create_revision():
        row.save()
    return row


def oldest(row: Any) -> Any:
    return Version.objects.get_for_object(row).last()


# django-reversion


def test_a_revert_brings_back_the_users_columns_only() -> None:
    letter = saved(Letter(), text="one two three")
    (held,) = Letter.objects.claim_batch(1)
    held.claim.release()
    run_due(Letter)
    letter = saved(Letter.objects.get(), text="edited")
    before = facts(letter)
    assert (before["status"], before["iteration"], letter.words) == ("complete", 1, 3)
    oldest(letter).revision.revert()
    letter.refresh_from_db()
    assert (letter.text, letter.words) == ("one two three", None)
    assert facts(letter) == before
    letter.delete()
    (version,) = Version.objects.get_deleted(Letter)
    version.revert()
    assert (Letter.objects.get().status, Letter.objects.get().iteration) == ("complete", 1)
    assert Letter.objects.claim_batch(1) == []


# django-simple-history


@pytest.mark.parametrize("model", [Invoice, Order])
def test_history_is_written_read_and_restored(model: Any) -> None:
    row = model.objects.create(text="1 2")
    (held,) = model.objects.claim_batch(1)
    held.text = "3 4"
    held.save()
    began = timezone.now()
    held.claim.release()
    run_due(model)
    row.refresh_from_db()
    assert (row.total, row.status) == (7, "complete")
    row.text = "5"
    row.save()
    before = facts(row)
    newest, running, first = row.history.all()
    assert [one.text for one in (newest, running, first)] == ["5", "3 4", "1 2"]
    assert row.history.as_of(began).text == "3 4"
    for version in (first, running):
        version.instance.save()
        assert model.objects.get().text == version.text
        assert facts(row) == before
    assert model.objects.claim_batch(1) == []
    assert row.history.count() == 5
    row.delete()
    gone = model.history.filter(history_type="-").get()
    # An ordinary save of a new row, and one that names a holder is a copy.
    gone.instance.save()
    assert facts(model.objects.get())["status"] == "open"
