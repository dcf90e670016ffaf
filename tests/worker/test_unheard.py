"""Claims of which nobody heard: what they have taken is found, however late it is committed."""

import sys
from datetime import timedelta
from typing import Any

import pytest

from django_taskclaim.handlers import Handler
from django_taskclaim.querysets.claiming import Request, new_holder
from django_taskclaim.worker.unheard import UnheardClaims
from tests.factories import make
from tests.testapp.models import Photo


@pytest.mark.django_db
def test_what_is_committed_after_the_first_part_was_found_is_found_as_well() -> None:
    """A claim may be two statements, each committed for itself, and the answer to the second one be lost."""
    one = Request(2, new_holder(), timedelta(seconds=60), include_held=False, durable=True)
    unheard = UnheardClaims("default")
    unheard.note(Handler(Photo, print), one)
    for _ in ("the first part", "the second"):
        rows: Any = make(Photo, 2)
        Photo.objects.all()._claim(one)
        found = unheard.find(now=True)
        assert [task.row for task in found] == rows
        Photo.objects.complete([task.row for task in found])
    assert unheard.find(now=True) == []


@pytest.mark.django_db
def test_a_claim_noted_during_a_look_is_not_forgotten() -> None:
    """The thread that claims may note one between any two instructions of the thread that looks."""
    rows: Any = make(Photo, 1)
    one = Request(1, new_holder(), timedelta(seconds=60), include_held=False, durable=True)
    Photo.objects.all()._claim(one)
    handler, moments = Handler(Photo, print), 0
    over = Request(1, new_holder(), timedelta(0), include_held=False, durable=True)
    while True:
        unheard = UnheardClaims("default")
        unheard.note(handler, over)
        left = moments

        def note(frame: Any, event: str, arg: Any, unheard: Any = unheard) -> Any:
            nonlocal left
            if frame.f_code.co_name != "find":
                return None
            frame.f_trace_opcodes = True
            if event == "opcode":
                left -= 1
                if left == 0:
                    unheard.note(handler, one)
            return note

        before = sys.gettrace()
        sys.settrace(note)
        try:
            unheard.find(now=True)
        finally:
            sys.settrace(before)
        if left > 0:
            break
        if moments:
            assert [task.row for task in unheard.find(now=True)] == rows, f"moment {moments}"
        moments += 1
    assert moments > 10
