"""django-reversion and django-simple-history: versions of claimable rows, and what a revert leaves alone."""

from collections.abc import Callable
from typing import Any

import pytest
import reversion
from django.db import transaction
from django.utils import timezone
from reversion.models import Version
from simple_history.utils import bulk_create_with_history, bulk_update_with_history

from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.testing import run_due
from tests.third_party.app.models import Invoice, InvoiceMail, Letter, Order, VersionAudit
from tests.third_party.rows import facts, lose

pytestmark = pytest.mark.django_db

PROCESSES = pytest.mark.django_db(transaction=True)


@PROCESSES
def test_a_worker_does_rows_with_versions_and_with_history(work: Callable[..., str]) -> None:
    saved(Letter(), text="one two")
    Invoice.objects.create(text="1 2")
    Order.objects.create(text="3 4")
    work(Letter, Invoice, Order)
    assert Letter.objects.get().words == 2
    assert [model.objects.get().total for model in (Invoice, Order)] == [3, 7]
    assert [facts(model.objects.get())["status"] for model in (Letter, Invoice, Order)] == [
        "complete"
    ] * 3


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
    run_due(Letter)
    assert Letter.objects.get().words is None
    Letter.objects.reset(complete=True)
    run_due(Letter)
    assert Letter.objects.get().words == 3


def test_a_version_of_a_lost_claim_gives_nothing_back() -> None:
    saved(Letter(), text="one")
    (late,) = Letter.objects.claim_batch(1)
    saved(late, text="held")
    current = lose(late)
    Version.objects.get_for_object(late).first().revision.revert()
    before = facts(current)
    for write in (late.claim.complete, late.delete, late.save):
        with pytest.raises(ClaimLost), transaction.atomic():
            write()
    assert facts(current) == before
    current.claim.complete()


def test_a_deleted_row_is_recovered_as_it_was() -> None:
    letter = saved(Letter(), text="one two")
    run_due(Letter)
    letter = saved(Letter.objects.get(), text="edited")
    before = facts(letter)
    letter.delete()
    (version,) = Version.objects.get_deleted(Letter)
    version.revert()
    after = Letter.objects.get()
    assert (after.status, after.iteration) == ("complete", before["iteration"])
    assert Letter.objects.claim_batch(1) == []


def test_versions_have_a_companion_of_their_own() -> None:
    letter = saved(saved(Letter(), text="one"), text="two")
    assert VersionAudit.objects.populate(Version.objects.all()) == 2
    run_due(VersionAudit)
    oldest(letter).revision.revert()
    assert set(VersionAudit.objects.values_list("status", flat=True)) == {"complete"}
    assert VersionAudit.objects.exclude(size=None).count() == 2


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
    # What a revert wrote down is what the row has, not what the version had.
    if model is Invoice:
        assert row.history.first().status == "complete"
    row.history.as_of(began).save()
    assert facts(row) == before


def test_a_restored_row_does_not_give_a_lost_claim_back() -> None:
    Invoice.objects.create(text="1")
    (late,) = Invoice.objects.claim_batch(1)
    late.save()
    current = lose(late)
    late.history.first().instance.save()
    for write in (late.claim.complete, late.save, late.delete):
        with pytest.raises(ClaimLost), transaction.atomic():
            write()
    current.claim.complete()


@pytest.mark.parametrize("model", [Invoice, Order])
def test_a_deleted_row_comes_back_open(model: Any) -> None:
    """Its ``save()`` is an ordinary one of a new row that names a holder: a copy."""
    row = model.objects.create(text="1")
    run_due(model)
    row.refresh_from_db()
    row.delete()
    gone = model.history.filter(history_type="-").get()
    if model is Invoice:
        assert (gone.status, gone.text) == ("complete", "1")
        gone.instance.save()
        assert facts(model.objects.get())["status"] == "open"
        run_due(model)
        assert model.objects.get().total == 1


def test_bulk_history() -> None:
    bulk_create_with_history([Invoice(text=str(n)) for n in range(3)], Invoice)
    run_due(Invoice)
    rows = list(Invoice.objects.order_by("pk"))
    for row in rows:
        row.text = "9"
    bulk_update_with_history(rows, Invoice, ["text"])
    assert set(Invoice.objects.values_list("text", "status")) == {("9", "complete")}
    assert Invoice.history.count() == 6
    assert set(Invoice.history.filter(history_type="~").values_list("status", flat=True)) == {
        "complete"
    }


def test_a_late_bulk_update_with_history_writes_nothing() -> None:
    Invoice.objects.create(text="1")
    (late,) = Invoice.objects.claim_batch(1)
    lose(late)
    late.text = "late"
    with pytest.raises(ClaimLost), transaction.atomic():
        bulk_update_with_history([late], Invoice, ["text"])
    assert Invoice.objects.get().text == "1"
    assert Invoice.history.count() == 1


def test_the_table_of_the_history_is_plain() -> None:
    """It has no claim index and no verbs; moments and holders are as in the row."""
    history = Invoice.history.model
    assert [index.name for index in history._meta.indexes] == []
    assert not hasattr(history, "claim")
    row = Invoice.objects.create(text="1")
    run_due(Invoice)
    row = Invoice.objects.get()
    row.save()
    newest = row.history.first()
    ours = [field.name for field in Invoice._meta.fields if hasattr(newest, field.name)]
    assert "completed_at" in ours
    assert {n: getattr(newest, n) for n in ours} == {n: getattr(row, n) for n in ours}
    delta = newest.diff_against(row.history.last())
    assert delta.changed_fields == ["total"]
    assert not {field.name for field in Order.history.model._meta.fields} & {"status", "iteration"}


def test_a_companion_beside_a_row_with_history() -> None:
    row = Invoice.objects.create(text="1")
    InvoiceMail.objects.populate(Invoice.objects.all())
    run_due(InvoiceMail)
    row.history.first().instance.save()
    mail = InvoiceMail.objects.get()
    assert (mail.status, mail.receiver) == ("complete", f"buyer {row.pk}")
