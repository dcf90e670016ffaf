"""What ``claimstatus --watch`` shows in a real terminal."""

import signal
from collections.abc import Callable, Iterator

import pytest

from tests.commands import no_savepoint
from tests.factories import make
from tests.terminal import Terminal
from tests.testapp.models import Photo

pytestmark = [pytest.mark.once, no_savepoint]

Open = Callable[..., Terminal]


@pytest.fixture
def terminal(process_env: dict[str, str]) -> Iterator[Open]:
    """Open terminals with a command in each."""
    opened: list[Terminal] = []

    def open_one(*words: str) -> Terminal:
        opened.append(Terminal(process_env, *words))
        return opened[-1]

    yield open_one
    for one in opened:
        one.end()


def test_a_watch_is_drawn_again_until_it_is_stopped(terminal: Open) -> None:
    """An error text cannot send codes; the last picture stays, and the terminal is as it was."""
    make(Photo, 20)
    Photo.objects.complete(Photo.objects.claim_batch(10))
    (row,) = Photo.objects.claim_batch(1)
    row.claim.fail(ValueError("no\x1b[2J picture"), retry=False)
    Photo.objects.claim_batch(3)
    shown = terminal("claimstatus", "testapp.Photo", "--watch", "100ms", "--no-color")
    shown.wait_for(
        r"^testapp\.Photo +6 +3 +10 +1 +0 +20  50\.0 %$",
        r"^  last error: \d+: ValueError: no \[2J picture$",
        r"^Workers: none alive$",
    )
    make(Photo, 2)
    shown.wait_for(r"^testapp\.Photo +8 .* 22 ")
    shown.process.send_signal(signal.SIGINT)
    assert shown.wait() == 0
    assert " 22  45.4 %" in shown.text.rpartition("Ctrl-C ends it")[2]
