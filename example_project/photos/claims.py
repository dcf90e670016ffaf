"""The work itself: what one claimed row is for. Everything else is the package's business."""

from functools import cache

import httpx

from django_taskclaim import handler
from django_taskclaim.exceptions import Permanent, RetryLater

from .models import Photo
from .pictures import describe


class PictureGone(Permanent):
    """The server says there is no such picture, so asking again is pointless."""


class ServerClosed(RetryLater):
    """The server says when to come back."""


RESULTS = ["width", "height", "average_colour", "thumbnail"]


@handler(Photo, batch_size=20, lease=10, timeout=60, update_fields=RESULTS)
def describe_photo(photo: Photo) -> None:
    """Download the picture and set what we know about it; the completion stores it."""
    describe(photo, download(photo.url))


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
