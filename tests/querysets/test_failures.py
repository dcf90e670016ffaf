"""What a row keeps of an error of any kind."""

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from tests.querysets.late_writes import claimed
from tests.querysets.support import facts
from tests.testapp.models import Photo

pytestmark = pytest.mark.django_db


# Errors that make it hard to describe them


class TextRaises(Exception):
    def __str__(self) -> str:
        raise self.args[0]

    __repr__ = __str__


class Endless(Exception):
    def __str__(self) -> str:
        return str(self)


def long_chain() -> BaseException:
    error: BaseException = ValueError("first")
    for number in range(20_000):
        following = ValueError(str(number))
        following.__cause__ = error
        error = following
    return error


def deep_group() -> BaseException:
    error: Exception = ValueError("innermost")
    for _ in range(2_000):
        error = ExceptionGroup("group", [error])
    return error


HOSTILE: dict[str, Callable[[], BaseException]] = {
    "text raises": lambda: TextRaises(RuntimeError("no")),
    "text recurses": Endless,
    "NUL only": lambda: ValueError("\x00" * 10_000),
    "long chain": long_chain,
    "deep group": deep_group,
    "exit": lambda: SystemExit(3),
}


@pytest.mark.promise(10)
@pytest.mark.parametrize("name", HOSTILE)
def test_any_error_is_recorded_and_its_row_put_back(name: str, settings: Any) -> None:
    for with_traceback in (False, True):
        settings.TASKCLAIM = {"STORE_TRACEBACK": with_traceback, "ERROR_LENGTH": 500}
        row = claimed(Photo)
        try:
            raise HOSTILE[name]()
        except BaseException as error:
            row.fail(error)
        now = facts(row)
        assert (now.status, now.attempts) == ("open", 1)
        assert 0 < len(now.error_class) <= 200
        assert len(now.last_error) <= 500
        assert ("File " in now.last_error) == with_traceback
        row.delete()


def test_class_and_text_of_an_error_are_stored() -> None:
    group = ExceptionGroup("two", [ValueError("one"), ExceptionGroup("more", [KeyError("other")])])
    members = "two (2 sub-exceptions)\n- ValueError: one\n- ExceptionGroup: more (1 sub-exception)\n- KeyError: 'other'"
    for error, kind, text in (
        ("a sentence", "", "a sentence"),
        (ValueError("nul \x00, \ud800"), "ValueError", "nul \\x00, \\ud800"),
        (ValueError("🎈 100% %s 'ü'"), "ValueError", "🎈 100% %s 'ü'"),
        (group, "ExceptionGroup", members),
    ):
        row = claimed(Photo)
        row.fail(error)
        assert (facts(row).error_class, facts(row).last_error) == (kind, text)
        row.delete()


@pytest.mark.promise(10)
def test_fifty_megabytes_of_text_cost_hardly_any_memory() -> None:
    size = 50_000_000
    error = ValueError("x" * size)
    row = claimed(Photo)
    tracemalloc.start()
    try:
        row.fail(error)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(facts(row).last_error) == 4000
    assert peak < size / 10


# Tracebacks


def failing(depth: int = 30) -> None:
    hidden_in_a_local = "only locals know " + "this"
    if depth:
        failing(depth - 1)
    assert hidden_in_a_local
    raise ValueError("the first part of the message" + " and more" * 1000)


@pytest.mark.parametrize("length", [300, 30_000])
def test_a_stored_traceback_keeps_the_first_words_and_the_innermost_frames(
    length: int, settings: Any
) -> None:
    settings.TASKCLAIM = {"STORE_TRACEBACK": True, "ERROR_LENGTH": length}
    row = claimed(Photo)
    with pytest.raises(ValueError, match="the first part") as caught:
        failing()
    row.fail(caught.value)
    text = facts(row).last_error
    assert len(text) <= length
    assert text.startswith("the first part of the message")
    last = next(line for line in reversed(text.splitlines()) if line.strip(" ^~"))
    assert 'raise ValueError("the first part' in last
    assert "only locals know this" not in text
