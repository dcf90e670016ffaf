"""Sources of every kind, and what is made of them."""

from typing import Any

import pytest

from tests.companions.app.models import (
    FarPage,
    FarTask,
    Line,
    LineTask,
    Page,
    PageCheck,
    PageTask,
    Task,
    TaskAudit,
)


def make_sources(companion: Any, n: int) -> Any:
    """Make n sources of a companion, and return the queryset of them all."""
    if companion is LineTask:
        lines = [Line(page_id=f"p{i // 7}", number=i, text="x" * i) for i in range(n)]
        Line.objects.bulk_create(lines)
        return Line.objects.all()
    if companion is FarTask:
        FarPage.objects.using("other").bulk_create([FarPage(title=str(i)) for i in range(n)])
        return FarPage.objects.using("other")
    if companion is TaskAudit:
        Task.objects.bulk_create([Task() for _ in range(n)])
        return Task.objects.all()
    slugs = [f"page {i:05d} 50% 'Zoë'" for i in range(n)]
    Page.objects.bulk_create([Page(slug=slug, title="two words") for slug in slugs])
    return Page.objects.all()


def claimed_pages(n: int, model: Any = PageTask) -> list[Any]:
    model.objects.populate(make_sources(model, n))
    return list(model.objects.claim_batch(n))


@pytest.fixture(
    params=[PageTask, PageCheck, LineTask, FarTask], ids=lambda companion: companion.__name__
)
def companion(request: pytest.FixtureRequest) -> Any:
    """Each kind of link in turn: to a text key, as the own key, to a composite key, to another database."""
    return request.param
