"""A row that cannot be read fails alone, with the error: the others of its model are claimed and done."""

from typing import Any

import pytest
from django.db import Error, connection, models

from tests.factories import make
from tests.meanwhile import column_away
from tests.proxy import Fate, swallowed, withheld
from tests.querysets.models import Sealed, SealedChild
from tests.querysets.support import Rule, execute, keys, quoted, table_of
from tests.testapp.odd_models import SealedField

pytestmark = [pytest.mark.django_db, pytest.mark.promise(10)]

#: Column, and what of it nobody can read, by the kind of the fault.
FAULTS = {"field": ("secret", "'broken'", "ValueError: the seal is broken")}
if connection.vendor == "postgresql":
    FAULTS["moment"] = ("seen_at", "'infinity'", "DataError: ")
if connection.vendor == "sqlite":
    FAULTS["text"] = ("note", "CAST(x'ff' AS TEXT)", "OperationalError: Could not decode")


@pytest.fixture(params=FAULTS)
def fault(request: pytest.FixtureRequest) -> tuple[str, str, str]:
    return FAULTS[request.param]


@pytest.fixture(autouse=True)
def one_try(rule: Rule) -> None:
    rule(Sealed, max_attempts=1)


def spoil(row: Any, fault: tuple[str, str, str]) -> None:
    column, value, _ = fault
    execute(f"UPDATE {table_of(Sealed)} SET {quoted(column)} = {value} WHERE id = %s", (row.pk,))


def state(row: Any) -> tuple[str, int, str]:
    """Return what is stored of a row's claim, without its other columns."""
    names = ("status", "attempts", "error_class", "last_error")
    status, attempts, kind, text = Sealed.objects.values_list(*names).get(pk=row.pk)
    return status, attempts, f"{kind}: {text}" if kind else ""


@pytest.mark.parametrize("model", [Sealed, SealedChild])
def test_the_others_are_claimed_and_it_fails(
    fault: Any, model: Any, caplog: pytest.LogCaptureFixture
) -> None:
    rows = model.objects.all()
    for queryset in (
        rows,
        rows.order_by("-pk"),
        rows.defer("counter"),
        rows.annotate(twice=models.F("counter") * 2),
    ):
        made = make(model, 6)
        spoil(made[1], fault)
        caplog.clear()
        claimed = queryset.claim_batch(6)
        assert sorted(keys(claimed)) == keys([made[0], *made[2:]])
        assert state(made[1])[:2] == ("failed", 1)
        assert fault[2] in state(made[1])[2]
        assert model.objects.complete(claimed) == 5
        (told,) = [one for one in caplog.records if one.__dict__.get("event") == "unreadable"]
        assert (told.levelname, told.__dict__["keys"]) == ("ERROR", [str(made[1].pk)])


@pytest.mark.usefixtures("strategy")
def test_the_tries_of_its_policy_count_and_nothing_is_left_claimed(rule: Rule, fault: Any) -> None:
    rule(Sealed, max_attempts=2, backoff=lambda failures: 0)
    rows = make(Sealed, 3)
    for row in rows[:2]:
        spoil(row, fault)
    assert keys(Sealed.objects.claim_batch(3)) == [rows[2].pk]
    assert state(rows[0])[:2] == ("open", 1)
    assert Sealed.objects.claim_batch(3) == []
    assert [state(row)[0] for row in rows] == ["failed", "failed", "processing"]


def test_what_a_person_holds_comes_back_without_a_row_spoilt_meanwhile(fault: Any) -> None:
    rows = make(Sealed, 4)
    me: dict[str, Any] = {"claimed_by": "user:17", "include_held": True}
    Sealed.objects.claim_batch(3, **me)
    spoil(rows[1], fault)
    assert keys(Sealed.objects.claim_batch(3, **me)) == keys([rows[0], *rows[2:]])
    assert state(rows[1])[0] == "failed"


@pytest.mark.django_db(transaction=True)
def test_what_the_model_or_its_table_lacks_is_no_rows_fault() -> None:
    """A misspelt name, and code that was deployed before its migration, charge nobody."""
    rows = make(Sealed, 2)
    with column_away(Sealed, "seen_at"):
        for queryset in (Sealed.objects.all(), Sealed.objects.order_by("pk")):
            with pytest.raises(Error):
                queryset.claim_batch(2)
        assert [state(row) for row in rows] == [("open", 0, "")] * 2
    with pytest.raises(AttributeError, match="typo"):
        Sealed.objects.prefetch_related("typo").claim_batch(2)
    assert [state(row) for row in rows] == [("open", 0, "")] * 2


@pytest.mark.promise(12)
@pytest.mark.parametrize("fate", [swallowed, withheld], ids=["committed", "not committed"])
def test_a_commit_without_an_answer_is_looked_up_after_the_bad_row_as_well(
    commits: Any, fate: Fate
) -> None:
    rows = make(Sealed, 3)
    spoil(rows[1], FAULTS["field"])
    commits.arm(fate)
    if fate is withheld:
        with pytest.raises(Error, match="not committed"):
            Sealed.objects.order_by("pk").claim_batch(3)
        assert [state(row)[:2] for row in rows] == [("open", 0)] * 3
        return
    claimed = Sealed.objects.order_by("pk").claim_batch(3)
    assert keys(claimed) == keys([rows[0], rows[2]])
    assert [state(row)[:2] for row in rows] == [("processing", 0), ("failed", 1), ("processing", 0)]


@pytest.mark.promise(12)
@pytest.mark.django_db(transaction=True)
def test_a_claim_that_ends_in_another_error_leaves_nothing_claimed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where the first try has committed by itself."""
    rows = make(Sealed, 3)
    spoil(rows[1], FAULTS["field"])
    errors: list[BaseException] = [ValueError("unreadable"), KeyboardInterrupt()]

    def interrupted(field: Any, value: Any, *args: Any) -> Any:
        if value == "broken":
            raise errors.pop(0)
        return value

    monkeypatch.setattr(SealedField, "from_db_value", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Sealed.objects.claim_batch(3)
    monkeypatch.undo()
    assert [state(row) for row in rows] == [("open", 0, "")] * 3
