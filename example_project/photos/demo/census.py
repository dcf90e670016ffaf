"""What the table says at one moment."""

from collections import Counter
from collections.abc import Iterator

from django.db.models import Count

from django_taskclaim.states import Status

from ..models import Photo
from .account import Row
from .records import trouble


def unfinished() -> int:
    """How many rows somebody has still to do something about."""
    progress = Photo.objects.progress()
    return progress.total - progress.finished


def in_hands() -> Counter[str]:
    """How many rows each worker has now; it claims each batch as `<worker>@<host>#<random>`."""
    rows = Photo.objects.filter(status=Status.PROCESSING).order_by().values_list("claimed_by")
    hands: Counter[str] = Counter()
    for holder, count in rows.annotate(Count("pk")):
        hands[holder.partition("@")[0]] += count
    return hands


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
