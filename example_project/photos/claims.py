"""The work itself: what one claimed row is for. Everything else is the package's business."""

from functools import cache

import httpx

from django_taskclaim import handler
from django_taskclaim.exceptions import Permanent, RetryLater

from .imaging import describe
from .models import Photo


class PictureGone(Permanent):
    """The server says there is no such picture, so asking again is pointless."""


class ServerClosed(RetryLater):
    """The server says when to come back."""


@handler(
    Photo,
    batch_size=20,
    lease=10,
    timeout=60,
    update_fields=["width", "height", "average_colour", "perceptual_hash", "thumbnail"],
)
def describe_photo(photo: Photo) -> None:
    """Download the picture and set what we know about it; the completion stores it."""
    facts = describe(download(photo.url))
    photo.width, photo.height = facts.width, facts.height
    photo.average_colour = facts.average_colour
    photo.perceptual_hash = facts.perceptual_hash
    photo.thumbnail = facts.thumbnail


def download(url: str) -> bytes:
    """The bytes behind `url`; an exception says whether, and when, to try again."""
    answer = client().get(url)
    if answer.status_code == httpx.codes.NOT_FOUND:
        raise PictureGone(f"404 for {url}")
    if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE and "Retry-After" in answer.headers:
        raise ServerClosed(int(answer.headers["Retry-After"]), "503 with Retry-After")
    # Anything else that is no success is tried again with back-off.
    return answer.raise_for_status().content


@cache
def client() -> httpx.Client:
    """One client a process, shared by its threads, so that connections are kept open."""
    # The pictures are on loopback: a proxy that the environment names could not reach them.
    return httpx.Client(timeout=httpx.Timeout(10, connect=3), trust_env=False)
