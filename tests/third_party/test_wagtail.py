"""Wagtail's pages as claimable rows, with the mixin before ``Page`` and behind it."""

from typing import Any

import pytest
from wagtail.models import Locale, Page

from django_taskclaim.testing import run_due
from tests.third_party.app.models import ArticlePage, ReportPage
from tests.third_party.rows import assert_open, facts

pytestmark = pytest.mark.django_db


@pytest.fixture(params=[ArticlePage, ReportPage])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def root() -> Page:
    Locale.objects.get_or_create(language_code="en")
    return Page.add_root(title="Root", slug="root")


@pytest.fixture
def page(kind: Any, root: Page) -> Any:
    return root.add_child(instance=kind(title="One", body="one two"))


def test_it_is_created_edited_published_and_worked_on(page: Any, kind: Any) -> None:
    page.title = "Edited"
    page.save_revision().publish()
    page.refresh_from_db()
    assert (page.title, page.live, page.status) == ("Edited", True, "open")
    run_due(kind)
    page.refresh_from_db()
    assert (page.words, page.status) == (2, "complete")
    page.unpublish()
    page.refresh_from_db()
    assert (page.live, page.status) == (False, "complete")


def test_an_old_revision_leaves_a_complete_row_complete(page: Any, kind: Any) -> None:
    old = page.save_revision()
    (held,) = kind.objects.claim_batch(1)
    held.claim.release()
    run_due(kind)
    before = facts(page)
    assert (before["status"], before["iteration"]) == ("complete", 1)
    page = kind.objects.get()
    page.title = "Later"
    page.save_revision().publish()
    old.publish()
    again = kind.objects.get()
    assert again.title == "One"
    assert facts(again) == before
    assert kind.objects.claim_batch(1) == []
    # Wagtail's own way back: the old content as the latest draft, then published.
    again.save_revision(previous_revision=old).publish()
    assert facts(again) == before


def test_copies_are_open(page: Any, kind: Any, root: Page) -> None:
    run_due(kind)
    page.refresh_from_db()
    before = facts(page)
    copied = page.copy(update_attrs={"slug": "two", "title": "Two"})
    below = page.copy(to=copied, recursive=True, update_attrs={"slug": "three"})
    assert_open(copied)
    assert_open(below)
    assert facts(page) == before
    run_due(kind)
    assert set(kind.objects.values_list("words", "status")) == {(2, "complete")}
