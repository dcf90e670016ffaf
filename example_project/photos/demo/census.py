"""What the table says at one moment."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from django.db.models import Count

from django_taskclaim.states import Status
from django_taskclaim.switch import paused_by

from ..models import Photo
from .account import Row
from .records import trouble


@dataclass(frozen=True, slots=True)
class Census:
    """Rows by state, and how many each worker has in its hands."""

    complete: int
    failed: int
    held: int
    due: int
    waiting: int
    in_hands: Counter[str]

    @property
    def unfinished(self) -> int:
        """Rows that somebody has still to do something about."""
        return self.held + self.due + self.waiting


def census() -> Census:
    """Count the rows."""
    progress = Photo.objects.progress()
    due = min(progress.open, Photo.objects.due().count())
    return Census(
        complete=progress.complete,
        failed=progress.failed,
        held=progress.processing,
        due=due,
        waiting=progress.open - due + progress.paused,
        in_hands=in_hands(),
    )


def in_hands() -> Counter[str]:
    """How many rows each worker has now; it claims each batch as `<worker>@<host>#<random>`."""
    rows = Photo.objects.filter(status=Status.PROCESSING).order_by().values_list("claimed_by")
    hands: Counter[str] = Counter()
    for holder, count in rows.annotate(Count("pk")):
        hands[holder.partition("@")[0]] += count
    return hands


def paused() -> str | None:
    """Who stopped the claims, and why; None while they flow."""
    switch = paused_by(Photo)
    if switch is None:
        return None
    return " ".join(("by", switch.by or "somebody", f"({switch.reason})" if switch.reason else ""))


def make_rows(urls: Iterator[str]) -> int:
    """Replace the rows of earlier runs by one for each URL."""
    Photo.objects.all().delete()
    return len(Photo.objects.bulk_create((Photo(url=url) for url in urls), batch_size=500))


def rows() -> Iterator[Row]:
    """Every row, for the account."""
    for photo in Photo.objects.order_by("pk").iterator(chunk_size=500):
        yield Row(
            key=photo.pk,
            number=int(photo.url.rpartition("/")[2]),
            status=photo.status,
            iteration=photo.iteration,
            error=trouble(photo.error_class, photo.last_error),
            width=photo.width,
            height=photo.height,
            average_colour=photo.average_colour,
            perceptual_hash=photo.perceptual_hash,
            thumbnail=None if photo.thumbnail is None else bytes(photo.thumbnail),
        )
