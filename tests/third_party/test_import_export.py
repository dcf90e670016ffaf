"""Rows that leave with all their columns and come back."""

from typing import Any

import pytest

from tests.third_party.app.models import Subscriber
from tests.third_party.app.resources import SubscriberExport, SubscriberImport

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def rows() -> None:
    """One row is complete, one failed, one runs, one is open."""
    Subscriber.objects.bulk_create(Subscriber(email=f"{name}@example.com") for name in "abcd")
    done, failed, _held = Subscriber.objects.claim_batch(3)
    done.complete()
    failed.fail(ValueError("no"))


def stored() -> list[dict[str, Any]]:
    return list(Subscriber.objects.order_by("pk").values())


def imported(resource: Any, exported: Any, form: str = "csv") -> Any:
    """Write the table to a file of that form, and read it in again."""
    file = exported.export(form)
    return resource().import_data(type(exported)().load(file, format=form))


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize("resource", [SubscriberExport, SubscriberImport])
@pytest.mark.parametrize("form", ["csv", "json", "xlsx"])
def test_rows_come_back_as_they_are(resource: Any, form: str) -> None:
    before = stored()
    exported = SubscriberExport().export()
    assert {"status", "claimed_by", "iteration"} < set(exported.headers)
    result = imported(resource, exported, form)
    assert not result.has_errors(), result.row_errors()
    assert stored() == before


@pytest.mark.usefixtures("rows")
def test_an_old_file_opens_no_row() -> None:
    exported = SubscriberExport().export()
    (row,) = Subscriber.objects.claim_batch(1)
    row.complete()
    before = stored()
    result = imported(SubscriberExport, exported)
    ((_, (error,)),) = result.row_errors()
    assert "status was set to 'open'" in str(error.error)
    assert stored() == before
    assert not imported(SubscriberImport, exported).has_errors()
    assert stored() == before


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize("resource", [SubscriberExport, SubscriberImport])
def test_new_rows_are_open(resource: Any) -> None:
    exported = SubscriberExport().export()
    Subscriber.objects.all().delete()
    assert not imported(resource, exported).has_errors()
    assert [row["status"] for row in stored()] == ["open"] * 4
