"""Companions whose source is gone are found, and removed unless somebody works on them; the command of companions."""

from typing import Any

import pytest
from django.db import models

from django_taskclaim.companions import load_sources
from tests.commands import run
from tests.companions.app.models import Page, PageTask
from tests.companions.conftest import make_sources

pytestmark = pytest.mark.django_db(databases=["default", "other"])


class Hiding(models.Manager[Any]):
    def get_queryset(self) -> Any:
        return super().get_queryset().none()


def test_orphans_are_removed_unless_somebody_works_on_them(
    companion: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A companion whose source is only hidden by ``base_manager_name`` is no orphan."""
    sources = make_sources(companion, 10)
    companion.objects.populate(sources)
    for source in sources.order_by("pk")[:4]:
        source.delete()
    hiding = Hiding()
    hiding.model = sources.model
    monkeypatch.setitem(vars(sources.model._meta), "base_manager", hiding)
    orphans = companion.objects.orphans()
    assert orphans.count() == 4
    assert companion.objects.filter(pk=orphans.first().pk).orphans().count() == 1
    (running,) = orphans.claim_batch(1)
    assert companion.objects.remove_orphans() == 3
    assert running.claim.check()
    running.complete()
    assert companion.objects.remove_orphans() == 1
    assert companion.objects.remove_orphans() == 0
    assert load_sources(companion.objects.claim_batch(10)) == []
    assert companion.objects.count() == 6


@pytest.mark.once
def test_the_command_populates_and_removes_orphans() -> None:
    make_sources(PageTask, 25)
    first = sorted(Page.objects.values_list("pk", flat=True))[:2]
    said = run("claimpopulate", "sources.PageTask", "--filter", "slug__lt=page 00005", "--paused")
    assert "Added 5 rows to sources.PageTask." in said
    assert "Added 20 rows" in run("claimpopulate", "sources.PageTask")
    assert PageTask.objects.progress().paused == 5
    Page.objects.filter(pk__in=first).delete()
    assert "2 rows without a source" in run("claimdoctor", "sources.PageTask")
    assert "Removed 2 rows" in run("claimpopulate", "sources.PageTask", "--remove-orphans")
    assert PageTask.objects.count() == 23
