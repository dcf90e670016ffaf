"""Fixtures, and packages that bring back an old version of a row, leave the claim of a row that exists alone."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core import serializers
from django.core.management import call_command
from django.db import models, transaction
from django.test import override_settings

from django_taskclaim.exceptions import ClaimLost
from tests.behaviour.late_writes import WRITES
from tests.behaviour.support import facts, fresh, lose, owner_of, stored, tables_of
from tests.factories import SHAPES, make
from tests.sources.app.models import Page, PageTask
from tests.testapp.models import Child, ChildOwnsClaim, CompositeKey, PercentNames, Photo

pytestmark = pytest.mark.django_db

FIXTURES_RULE = override_settings(
    TASKCLAIM={**getattr(settings, "TASKCLAIM", {}), "FIXTURES_WRITE_CLAIMS": True}
)


def version_of(row: Any) -> str:
    """Return the row as a fixture or a version table keeps it, with all the tables that it is on."""
    kept = [model._base_manager.get(pk=row.pk) for model in reversed(tables_of(type(row)))]
    return serializers.serialize("json", kept)


def revert(version: str) -> None:
    """Do what ``loaddata`` does with each object of a file, and django-reversion with each of a revision."""
    with transaction.atomic():
        for one in serializers.deserialize("json", version):
            one.save()


def test_a_complete_row_stays_complete(shape: Any) -> None:
    (row,) = make(shape, note="old")
    old = version_of(row)
    (row,) = shape.objects.claim_batch(1)
    row.claim.release()
    (row,) = shape.objects.claim_batch(1)
    row.note = "new"
    row.claim.complete(update_fields=["note"])
    before = facts(row)
    revert(old)
    assert fresh(row).note == "old"
    assert facts(row) == before
    assert shape.objects.claim_batch(1) == []


@pytest.mark.parametrize("write", ["complete", "fail", "renew", "save", "delete"])
def test_a_lost_claim_stays_lost(shape: Any, write: str) -> None:
    """The version names the lost claim as the one that stands."""
    make(shape)
    (late,) = shape.objects.claim_batch(1)
    old = version_of(late)
    current = lose(late)
    revert(old)
    before = stored(late)
    late.note = "late"
    with pytest.raises(ClaimLost):
        WRITES[write](late)
    assert stored(late) == before
    assert current.claim.check()
    current.claim.complete()


def test_no_second_claim_is_given_of_a_running_row(shape: Any) -> None:
    (row,) = make(shape)
    old = version_of(row)
    (row,) = shape.objects.claim_batch(1)
    before = facts(row)
    revert(old)
    assert facts(row) == before
    assert shape.objects.claim_batch(1) == []
    row.claim.complete()


def test_the_same_holds_of_a_companion() -> None:
    page = Page.objects.create(slug="page")
    task = PageTask.objects.create(source=page)
    old = version_of(task)
    (row,) = PageTask.objects.claim_batch(1)
    row.claim.complete()
    revert(old)
    assert facts(task).status == "complete"


@pytest.mark.parametrize(
    "model",
    # Django's loaddata looks for the table under its name with two percent signs.
    [model for model in SHAPES if model is not PercentNames],
    ids=lambda model: model.__name__[:20],
)
def test_loaddata_leaves_the_claims_of_rows_that_exist(model: Any, tmp_path: Path) -> None:
    make(model, 2, note="of the fixture")
    (late, _) = model.objects.claim_batch(2)
    file = tmp_path / "rows.json"
    rows = list(model._base_manager.all())
    file.write_text(json.dumps([one for row in rows for one in json.loads(version_of(row))]))
    lose(late)
    for row in model._base_manager.all():
        row.note = "later"
        row.save()
    before = [facts(row) for row in rows]
    call_command("loaddata", str(file), verbosity=0)
    assert [facts(row) for row in rows] == before
    assert {row.note for row in model._base_manager.all()} == {"of the fixture"}


def test_a_row_that_is_gone_comes_back_as_it_was(shape: Any) -> None:
    make(shape)
    (row,) = shape.objects.claim_batch(1, claimed_by="user:17")
    row.claim.fail("no", retry=False)
    before = facts(row)
    old = version_of(row)
    for model in tables_of(shape):
        model._base_manager.all()._raw_delete(using="default")
    revert(old)
    after = facts(row)
    assert (after.status, after.claimed_by) == ("failed", "user:17")
    assert after.iteration == before.iteration


@pytest.mark.parametrize("model", [Photo, Child, ChildOwnsClaim, CompositeKey])
def test_a_setting_lets_fixtures_rule(model: Any) -> None:
    (row,) = make(model)
    old = version_of(row)
    (row,) = model.objects.claim_batch(1)
    row.claim.complete()
    with FIXTURES_RULE:
        revert(old)
    assert (facts(row).status, facts(row).claimed_by) == ("open", None)


@pytest.mark.parametrize("rules", [True, False])
@pytest.mark.parametrize("model", [Photo, ChildOwnsClaim, CompositeKey])
def test_a_raw_save_of_the_claimed_instance_itself_is_fenced(model: Any, rules: bool) -> None:
    make(model)
    (late,) = model.objects.claim_batch(1)
    lose(late)
    before = stored(late)
    late.note = "late"
    with (
        override_settings(TASKCLAIM={"FIXTURES_WRITE_CLAIMS": rules}),
        pytest.raises(ClaimLost),
        transaction.atomic(),
    ):
        models.Model.save_base(late, raw=True)
    assert stored(late) == before


def test_the_instance_shows_what_is_stored(shape: Any) -> None:
    """Not what the version says of the claim."""
    (row,) = make(shape)
    old = version_of(row)
    (row,) = shape.objects.claim_batch(1)
    row.claim.complete()
    for one in serializers.deserialize("json", old):
        one.save()
        if type(one.object) is owner_of(shape):
            assert getattr(one.object, shape.claim_fields["status"]) == "complete"


def test_a_revert_is_one_statement(django_assert_num_queries: Callable[..., Any]) -> None:
    (row,) = make(Photo)
    (version,) = serializers.deserialize("json", version_of(row))
    with django_assert_num_queries(1):
        version.save()
