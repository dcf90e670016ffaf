"""Handlers of companions, for real workers."""

from typing import Any

from django_taskclaim import handler
from tests.companions.app.models import FarPage, FarTask, Line, LineTask, Page, PageCheck, PageTask
from tests.testapp.models import Ledger


@handler(PageTask, update_fields=["words", "visits"], backoff=lambda failures: 0.1)
def count_words(page: Page) -> None:
    """Count, on the source, and note the run under the companion's token."""
    Ledger.objects.create(model="Page", key=page.slug, worker=page.claim.token.holder)
    if page.title == "vanish":
        Page.objects.filter(pk=page.pk).delete()
    page.words = len(page.title.split())
    page.visits += 1


@handler(PageCheck, update_fields=["verdict"], backoff=lambda failures: 0.1)
def check(page: Page) -> None:
    """The second piece of work on the same pages."""
    from django_taskclaim.companions import companion_of

    companion_of(page).verdict = "good" if page.title else "empty"


@handler(LineTask, batch=True, atomic=True, update_fields=["length"], timeout=15)
def measure(lines: list[Line]) -> Any:
    """Answer by the source, or by its key."""
    for line in lines:
        line.length = len(line.text)
        yield line if line.number % 2 else line.pk


@handler(FarTask, update_fields=["title"])
def copy_title(page: FarPage) -> None:
    from django_taskclaim.companions import companion_of

    companion_of(page).title = page.title
