"""What a row keeps of an error, whatever the error is like."""

import copy
import logging
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, connections, transaction

from django_taskclaim.failures import described, in_ascii, told
from django_taskclaim.worker import records
from tests.behaviour.support import DEADLINE, elsewhere, execute, facts, quoted, table_of
from tests.factories import make
from tests.testapp.models import Photo

pytestmark = pytest.mark.django_db

needs_column_encodings = pytest.mark.skipif(
    connection.vendor != "mysql", reason="needs columns with an encoding of their own"
)


def claimed() -> Any:
    make(Photo)
    (row,) = Photo.objects.claim_batch(1)
    return row


def raised(make_error: Callable[[], BaseException]) -> BaseException:
    """Return an error that was really raised, with its traceback."""
    try:
        raise make_error()
    except BaseException as error:
        return error


# Errors that make it hard to say what they are


class SaysNothing(Exception):
    def __str__(self) -> str:
        raise self.args[0]

    __repr__ = __str__


class Endless(Exception):
    def __str__(self) -> str:
        return str(self)


class NoText(Exception):
    def __str__(self) -> Any:  # type: ignore[override]
        return 5


class Odd(str):
    """A str whose own methods cannot be trusted."""

    def __len__(self) -> int:
        return 10**12

    def __getitem__(self, key: Any) -> str:
        raise RuntimeError("not even this")

    def replace(self, *args: Any) -> str:  # type: ignore[override]
        raise RuntimeError("nor this")

    encode = splitlines = strip = replace  # type: ignore[assignment]


class SaysOdd(Exception):
    def __str__(self) -> str:
        return Odd("odd")


class NoName(type):
    def __getattribute__(cls, name: str) -> Any:
        if name in ("__name__", "__qualname__"):
            raise RuntimeError("a class without a name")
        return super().__getattribute__(name)


class Nameless(Exception, metaclass=NoName):
    pass


class NoCause(Exception):
    @property
    def __cause__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("nobody knows why")


class Notes(Exception):
    __notes__ = 5  # type: ignore[assignment]


def long_name() -> BaseException:
    return type("N" * 10_000, (Exception,), {"__module__": "m" * 10_000})("x")  # type: ignore[no-any-return]


def odd_module() -> BaseException:
    return type("Odd", (Exception,), {"__module__": None})("x")  # type: ignore[no-any-return]


def long_chain() -> BaseException:
    error: BaseException = ValueError("first")
    for number in range(20_000):
        following = ValueError(str(number))
        following.__cause__ = error
        error = following
    return error


def cycle() -> BaseException:
    one, other = ValueError("one"), KeyError("other")
    one.__cause__, other.__cause__ = other, one
    return one


def deep_group() -> BaseException:
    error: Exception = ValueError("innermost")
    for _ in range(2_000):
        error = ExceptionGroup("group", [error])
    return error


def wide_group() -> BaseException:
    return ExceptionGroup("group", [ValueError(str(number)) for number in range(20_000)])


HOSTILE: dict[str, Callable[[], BaseException]] = {
    "str raises": lambda: SaysNothing(RuntimeError("no")),
    "str recurses": lambda: Endless(),
    "str is no text": lambda: NoText(),
    "str is odd": lambda: SaysOdd(),
    "NUL": lambda: ValueError("nul \x00"),
    "surrogate": lambda: ValueError("half \ud83c of a pair"),
    "NUL only": lambda: ValueError("\x00" * 10_000),
    "emoji only": lambda: ValueError("🎈" * 10_000),
    "long": lambda: ValueError("x" * 5_000_000),
    "bytes": lambda: ValueError(b"\xff\xfe\x00"),
    "percent": lambda: ValueError("100% %s %(x)s {} '\"\\"),
    "long name": long_name,
    "odd module": odd_module,
    "no name": lambda: Nameless("x"),
    "no cause": lambda: NoCause("x"),
    "odd notes": lambda: Notes("x"),
    "long chain": long_chain,
    "cycle": cycle,
    "deep group": deep_group,
    "wide group": wide_group,
    "exit": lambda: SystemExit(3),
    "interrupt": lambda: KeyboardInterrupt(),
}


@pytest.mark.parametrize("with_traceback", [False, True], ids=["text", "traceback"])
@pytest.mark.parametrize("name", HOSTILE)
def test_no_error_escapes_recording(name: str, with_traceback: bool, settings: Any) -> None:
    """The row is put back with class and text, and a worker's log says so too."""
    settings.TASKCLAIM = {"STORE_TRACEBACK": with_traceback, "ERROR_LENGTH": 500}
    row = claimed()
    error = raised(HOSTILE[name])
    row.fail(error)
    now = facts(row)
    assert (now.status, now.attempts) == ("open", 1)
    assert 0 < len(now.error_class) <= 200
    assert len(now.last_error) <= 500
    assert ("File " in now.last_error) == with_traceback
    log_it(row, error)


INTERRUPTS = [KeyboardInterrupt, SystemExit, GeneratorExit]


@pytest.mark.parametrize("kind", INTERRUPTS)
def test_an_interrupt_passes_on_in_the_main_thread_alone(kind: type[BaseException]) -> None:
    """Elsewhere nobody sends one: there it is what the error does when it is asked for its text."""
    for error in (SaysNothing(kind()), BaseExceptionGroup("", [SaysNothing(kind())])):
        with pytest.raises(kind):
            described(error)
        text = elsewhere(described, error).result(DEADLINE)[1]
        assert f"<{kind.__name__} while describing the error>" in text


def log_it(row: Any, error: BaseException) -> None:
    """Log the failure as a worker does, through a handler that formats it for real."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(handler.format(record))  # type: ignore[method-assign]
    records.logger.addHandler(handler)
    try:
        records.failed(row, 0.1, *described(error), ran=0.1, final=True, raised=error)
        assert error.__traceback__ is None or "Traceback" in lines[0]
        records.Limited().warn("this", error)
    finally:
        records.logger.removeHandler(handler)
    failed, trouble = lines
    assert "no try is left" in failed
    assert "this: " in trouble
    assert len(failed.encode()) + len(trouble.encode()) < 1_000_000


def test_a_group_tells_of_its_members_and_an_error_of_its_notes() -> None:
    error = ExceptionGroup("two", [ValueError("one"), ExceptionGroup("more", [KeyError("other")])])
    error.add_note("in the night")
    row = claimed()
    row.fail(error)
    text = facts(row).last_error
    assert facts(row).error_class == "ExceptionGroup"
    assert text.splitlines() == [
        "two (2 sub-exceptions)",
        "in the night",
        "- ValueError: one",
        "- KeyError: 'other'",
    ]


def test_a_class_in_place_of_an_error_is_recorded_by_its_name() -> None:
    row = claimed()
    row.fail(TimeoutError)
    assert (facts(row).error_class, facts(row).last_error) == ("TimeoutError", "")


def test_fifty_megabytes_cost_no_more_than_the_text_itself() -> None:
    """Half a second and, beside the text that the error makes of itself, hardly any memory."""
    size = 50_000_000
    error = ValueError("x" * size)
    row = claimed()
    tracemalloc.start()
    try:
        # What this thread computed: a busy machine may take the processor away for seconds.
        began = time.thread_time()
        row.fail(error)
        log_it(row, error)
        taken, (_, peak) = time.thread_time() - began, tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(facts(row).last_error) == 4000
    assert peak < size / 10
    assert taken < 5
    # This one copies its text whenever it is asked.
    assert len(described(KeyError("x" * size))[1]) == 4000


def test_a_short_error_length_cuts_the_text_and_not_the_class(settings: Any) -> None:
    settings.TASKCLAIM = {"ERROR_LENGTH": 3}
    row = claimed()
    row.fail(TimeoutError("too late"))
    assert (facts(row).error_class, facts(row).last_error) == ("TimeoutError", "to…")


def test_escapes_do_not_outgrow_the_length(settings: Any) -> None:
    settings.TASKCLAIM = {"ERROR_LENGTH": 100}
    assert len(described(ValueError("\x00\ud800" * 60))[1]) == 100
    name, text = in_ascii(("N" * 200, "🎈" * 100))
    assert (len(name), len(text)) == (200, 99)
    assert text.startswith("\\U0001f388")
    assert text.endswith("\\U0001f388")


def test_an_error_in_one_line() -> None:
    assert told(ValueError("first\nsecond")) == "ValueError: first"
    assert told(KeyError()) == "KeyError"
    assert told("a sentence") == "a sentence"


# Tracebacks


def failing(depth: int = 0) -> None:
    hidden_in_a_local = "only locals know " + "this"
    if depth:
        failing(depth - 1)
    assert hidden_in_a_local
    raise ValueError("the first part of the message" + " and more" * 1000)


def caused() -> None:
    try:
        {}["missing"]
    except KeyError as error:
        raise ValueError("cause told") from error


def test_without_the_setting_no_traceback_is_stored() -> None:
    row = claimed()
    try:
        caused()
    except ValueError as error:
        row.fail(error)
    assert facts(row).last_error == "cause told"


def test_a_stored_traceback_tells_what_led_to_the_error(settings: Any) -> None:
    settings.TASKCLAIM = {"STORE_TRACEBACK": True}
    row = claimed()
    try:
        caused()
    except ValueError as error:
        row.fail(error)
    text = facts(row).last_error
    assert text.startswith("cause told\n\nTraceback (most recent call last):\n")
    assert text.index("KeyError: 'missing'") < text.index("direct cause") < text.rindex("in caused")


@pytest.mark.parametrize("length", [300, 1000, 4000])
def test_of_a_long_error_the_first_words_and_the_innermost_frames_are_kept(
    length: int, settings: Any
) -> None:
    settings.TASKCLAIM = {"STORE_TRACEBACK": True, "ERROR_LENGTH": length}
    row = claimed()
    try:
        failing(30)
    except ValueError as error:
        row.fail(error)
    text = facts(row).last_error
    assert length - 5 <= len(text) <= length
    assert text.startswith("the first part of the message")
    last = next(line for line in reversed(text.splitlines()) if line.strip(" ^~"))
    assert 'raise ValueError("the first part' in last
    assert "only locals know this" not in text


# Columns that lack a character


@pytest.fixture
def alter(transactional_db: None) -> Iterator[Callable[[str, str], None]]:
    """Change the type of a column of ``Photo`` for the length of a test: ``alter("last_error", "varchar(5)")``."""

    def change(role: str, kind: str) -> None:
        column = quoted(Photo._meta.get_field(role).column)
        execute(f"ALTER TABLE {table_of(Photo)} MODIFY {column} {kind} NOT NULL")

    yield change
    with connection.schema_editor() as editor:
        editor.delete_model(Photo)
        editor.create_model(Photo)


@needs_column_encodings
@pytest.mark.parametrize("encoding", ["latin1", "utf8mb3", "ascii"])
@pytest.mark.parametrize("retry", [False, True])
def test_a_character_that_the_column_lacks_is_stored_as_an_escape(
    alter: Callable[[str, str], None], encoding: str, retry: bool
) -> None:
    """Also inside the caller's transaction, which goes on, and for several rows at once."""
    alter("last_error", f"longtext CHARACTER SET {encoding}")
    alter("error_class", f"varchar(200) CHARACTER SET {encoding}")
    make(Photo, 3)
    rows = Photo.objects.claim_batch(3)
    odd_name = type("Über日本", (Exception,), {"__module__": "builtins"})
    assert Photo.objects.fail(rows[:1], ValueError("no 🎈 here"), retry=retry) == 1
    with transaction.atomic():
        assert Photo.objects.fail(rows[1:], odd_name("🎈"), retry=retry) == 2
        Photo.objects.filter(pk=rows[1].pk).update(note="goes on")
    now = [facts(row) for row in rows]
    assert {one.status for one in now} == {"open" if retry else "failed"}
    assert [one.attempts for one in now] == [1, 1, 1]
    assert now[0].last_error == "no \\U0001f388 here"
    assert now[1].error_class == "\\xdcber\\u65e5\\u672c"
    assert Photo.objects.get(pk=rows[1].pk).note == "goes on"


@needs_column_encodings
def test_a_column_that_is_too_narrow_costs_the_text_and_not_the_failure(
    alter: Callable[[str, str], None],
) -> None:
    alter("last_error", "varchar(5)")
    row = claimed()
    row.fail("more than five")
    assert (facts(row).status, facts(row).attempts, facts(row).last_error) == ("open", 1, "")


@pytest.fixture
def latin1_session(transactional_db: None) -> Iterator[None]:
    """Let this thread's connection speak latin1: then the driver itself refuses a character, before the server."""
    usual = connections["default"]
    settings = copy.deepcopy(usual.settings_dict)
    settings["OPTIONS"]["charset"] = "latin1"
    connections["default"] = type(usual)(settings, "default")
    yield
    connections["default"].close()
    connections["default"] = usual


@needs_column_encodings
def test_a_character_that_the_session_lacks_is_stored_as_an_escape(latin1_session: None) -> None:
    row = claimed()
    row.fail("🎈 here")
    assert (facts(row).status, facts(row).last_error) == ("open", "\\U0001f388 here")
