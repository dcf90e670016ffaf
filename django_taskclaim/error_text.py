"""The text of an error in its row and in the log: of bounded size, redacted, and acceptable to any database.

Every text goes one way. It is cut to what the hook ``REDACT`` may see, redacted, and only then cut to size. Whatever an
exception does when it is asked for its text, that is no reason not to record that it happened. Only an interrupt of the
main thread passes on.
"""

import logging
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from django.utils.module_loading import import_string

from django_taskclaim import conf

T = TypeVar("T")

#: Characters of one text that the hook gets to see, unless ERROR_LENGTH asks for more.
SEEN = 65_536
#: Characters that the column of the class holds.
CLASS_LENGTH = 200
#: Innermost frames shown of one traceback.
FRAMES = 20
#: How many exceptions are followed from one to what it was raised from or during, and how many members of a group.
LINKS, MEMBERS = 10, 10

#: What happened between an exception and the next one, in Python's own words.
_CAUSED = "The above exception was the direct cause of the following exception:"
_DURING = "During handling of the above exception, another exception occurred:"


def class_and_text(error: object) -> tuple[str, str]:
    """Return class and text of an error; the class is empty for what is a text itself.

    Members of an exception group are part of its text.
    """
    return _class_of(error), _cut(redact(_whole_text(error)), _length())


def text_to_store(error: object) -> tuple[str, str]:
    """Return what a row keeps of an error: as ``class_and_text``, and with STORE_TRACEBACK also where it came from.

    Of both the text's beginning and the innermost frames are kept.
    """
    name, text = class_and_text(error)
    if not conf.setting("STORE_TRACEBACK") or not isinstance(error, BaseException):
        return name, text
    return name, _joined(text, _guarded(partial(_trace, error), "looking for the traceback"))


def escape_to_ascii(stored: tuple[str, str]) -> tuple[str, str]:
    """Return class and text as every encoding has them; of a text grown too long the middle is missing."""
    name, text = (part.encode("ascii", "backslashreplace").decode() for part in stored)
    return name[:CLASS_LENGTH], _middle_cut(text, _length())


def describe(error: object) -> str:
    """Return an error in one line for the log: class, and the first line of its text."""
    return one_line(*class_and_text(error))


def one_line(name: str, text: str) -> str:
    """Return class and text, as ``class_and_text`` returns them, in one line."""
    first = next(iter(text.strip().splitlines()), "")[:300]
    return f"{name}: {first}" if name and first else name or first


def redact(text: str, *, keep_end: bool = False) -> str:
    """Return *text* as it may be stored and logged; where it is very long its beginning, or with *keep_end* its end.

    Where the hook fails, or answers with anything but text, all of the text is withheld.
    """
    most = max(SEEN, 2 * _length())
    clean = _clean(_cut(text, most, keep_end=keep_end))
    path = conf.setting("REDACT")
    if not path or not clean:
        return clean
    shown, fault = _asked(path, clean)
    if fault:
        return f"<withheld: {fault}>"
    if str.__len__(text) > most:
        shown = _without_halves(shown, most // 4, keep_end)
    return _clean(shown)


def redaction_fault() -> str:
    """Return in words what is wrong with the hook, tried on a harmless text; empty where there is none, or no fault."""
    path = conf.setting("REDACT")
    return _asked(path, "a text to redact")[1] if isinstance(path, str) else ""


def log(
    logger: logging.Logger,
    level: int,
    message: str,
    *args: object,
    raised: BaseException | None = None,
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Log *message* with the traceback of *raised*.

    Where a hook redacts, or the exception is of a kind that breaks formatters, the record carries no exception but
    its traceback as text: ``record.exc_text``, which formatters append, and ``record.traceback``.
    """
    if raised is None or (
        not conf.setting("REDACT") and _attempt(partial(_is_small, raised), lambda _: False)
    ):
        logger.log(level, message, *args, exc_info=raised, extra=extra, stacklevel=2)
    elif logger.isEnabledFor(level):
        text = traceback_of(raised)
        file, line, function, _ = logger.findCaller(stacklevel=2)
        record = logger.makeRecord(
            logger.name,
            level,
            file,
            line,
            message,
            args,
            None,
            function,
            {**(extra or {}), "traceback": text},
        )
        record.exc_text = text
        logger.handle(record)


def traceback_of(error: BaseException) -> str:
    """Return class, text and origin of an error as Python would print them, without locals, bounded and redacted."""
    name, text = class_and_text(error)
    where = _guarded(partial(_trace, error), "looking for the traceback")
    return "\n".join(part for part in (where, f"{name}: {text}" if text else name) if part)


def is_interrupt(error: BaseException) -> bool:
    """Say whether *error* is to end what the main thread does (Ctrl-C, a server's timeout): it must pass on."""
    return (
        not isinstance(error, Exception) and threading.current_thread() is threading.main_thread()
    )


# The hook


def _asked(path: str, text: str) -> tuple[str, str]:
    """Return what the hook makes of *text*, and what is wrong with it, one of which is empty."""
    try:
        answer = import_string(path)(text)
        if isinstance(answer, str):
            return _plain(answer), ""
    except BaseException as error:
        if is_interrupt(error):
            raise
        return "", f"REDACT raised {_class_of(error)}"
    return "", f"REDACT returned {_class_of(type(answer))}, which is no text"


def _without_halves(text: str, margin: int, keep_end: bool) -> str:
    """Throw away what lies next to a cut: the hook saw but half of a secret cut in two, and may not have known it."""
    return "…" + text[margin:] if keep_end else text[: max(0, len(text) - margin)] + "…"


# What an exception says


def _class_of(error: object) -> str:
    """Return the dotted name of an exception's class, at most as long as its column; empty for a text."""
    kind = error if isinstance(error, type) else type(error)
    if not issubclass(kind, BaseException) and not isinstance(error, type):
        return ""
    return _cut(_clean(_guarded(partial(_dotted, kind), "looking for its name")), CLASS_LENGTH)


def _dotted(kind: type) -> str:
    name = _cut(kind.__qualname__, 2 * CLASS_LENGTH)
    module = kind.__module__
    return name if module == "builtins" else f"{_cut(module, 2 * CLASS_LENGTH)}.{name}"


def _whole_text(error: object) -> str:
    """Return the text of an error with its notes, and a group with its members; raw, and as long as it likes."""
    lines = [_words(error), *_guarded_list(partial(_notes, error))]
    if isinstance(error, BaseExceptionGroup):
        lines += _guarded_list(partial(_of_members, error))
    return "\n".join(lines)


def _notes(error: object) -> list[str]:
    notes = getattr(error, "__notes__", ()) if isinstance(error, BaseException) else ()
    return [_words(note) for note in notes[:MEMBERS]]


def _words(error: object) -> str:
    # An exception class given in place of an instance says nothing.
    return (
        ""
        if isinstance(error, type)
        else _guarded(lambda: _plain(str(error)), "describing the error")
    )


def _of_members(group: BaseExceptionGroup[BaseException]) -> list[str]:
    most = max(SEEN, 2 * _length())
    return [f"- {_class_of(one)}: {_cut(_words(one), most)}" for one in _leaves(group)]


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """Yield the first exceptions in a group that are no groups; one nested too deeply yields fewer."""
    waiting: list[BaseException] = [group]
    found = 0
    for _ in range(100):
        if not waiting or found == MEMBERS:
            return
        one = waiting.pop(0)
        if isinstance(one, BaseExceptionGroup):
            waiting[:0] = one.exceptions[: MEMBERS + 1]
        else:
            found += 1
            yield one


# Where it came from


def _trace(error: BaseException) -> str:
    """Return the frames of an error and of what led to it, in the order of Python: its own innermost frames last."""
    text = _frames(error)
    # What an exception calls its cause may be anything; its own frames are told all the same.
    try:
        for cause, how in islice(_causes(error), LINKS):
            if len(text) > _length():
                break
            name, shown = class_and_text(cause)
            text = f"{_frames(cause)}\n{name}: {shown}\n\n{how}\n\n{text}".lstrip()
    except BaseException as second:
        if is_interrupt(second):
            raise
    return text


def _causes(error: BaseException) -> Iterator[tuple[BaseException, str]]:
    """Yield what *error* was raised from or during, what that was raised from, and so on; a cycle once."""
    seen = {id(error)}
    while True:
        cause, how = error.__cause__, _CAUSED
        if cause is None and not error.__suppress_context__:
            cause, how = error.__context__, _DURING
        if cause is None or id(cause) in seen:
            return
        seen.add(id(cause))
        yield cause, how
        error = cause


def _frames(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__, limit=-FRAMES).format()
    if not frames:
        return ""
    lines = redact("".join(frames), keep_end=True).rstrip("\n")
    return f"Traceback (most recent call last):\n{lines}"


def _is_small(error: BaseException) -> bool:
    """Say whether any formatter may be given the exception: of ordinary size and depth, and willing to be shown."""
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        if len(seen) > LINKS + MEMBERS or not _is_short(one):
            return False
        waiting += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions[: LINKS + MEMBERS]
    return True


def _is_short(error: BaseException) -> bool:
    if len(str(error)) > SEEN:
        # Not asked for anything else: each answer may be as long.
        return False
    notes = getattr(error, "__notes__", "")
    # Half a surrogate pair cannot be encoded, which breaks files and streams of logs.
    return len(f"{error!s}{error!r}{notes!r}{_dotted(type(error))}".encode()) <= SEEN


# Texts


def _attempt(ask: Callable[[], T], otherwise: Callable[[BaseException], T]) -> T:
    """Return what *ask* answers; if it raises, of whatever kind, what *otherwise* makes of that."""
    try:
        return ask()
    except BaseException as second:
        if is_interrupt(second):
            raise
        return otherwise(second)


def _guarded(ask: Callable[[], str], doing: str) -> str:
    """Return the text that *ask* answers; if it raises, a note of that."""
    return _attempt(ask, lambda second: f"<{_name_of(second)} while {doing}>")


def _guarded_list(ask: Callable[[], list[str]]) -> list[str]:
    return _attempt(ask, lambda second: [f"<{_name_of(second)} while describing more of it>"])


def _name_of(error: BaseException) -> str:
    # type.__name__ itself: a metaclass may have one of its own, which raises.
    return _clean(str(type.__dict__["__name__"].__get__(type(error)))[:CLASS_LENGTH])


def _length() -> int:
    return int(conf.setting("ERROR_LENGTH"))


def _plain(text: str) -> str:
    """Return the text alone of what may be a subclass with methods of its own."""
    return str.__getitem__(text, slice(None))


def _cut(text: str, most: int, *, keep_end: bool = False) -> str:
    """Return *text*, of a longer one *most* characters with a mark where it was cut."""
    size = str.__len__(text)
    if size <= most:
        return _plain(text)
    if keep_end:
        return "…" + str.__getitem__(text, slice(size - most + 1, None))
    return str.__getitem__(text, slice(most - 1)) + "…"


def _middle_cut(text: str, most: int) -> str:
    if len(text) <= most or most < 5:
        return text[:most]
    half = (most - 3) // 2
    return f"{text[:half]}...{text[-half:]}"


def _joined(text: str, trace: str) -> str:
    """Return text and traceback in one: each has half of the room, and what the other leaves of it."""
    most = _length()
    head = _cut(text, max(most // 2, most - len(trace) - 2))
    room = most - len(head) - 2
    return f"{head}\n\n{_cut(trace, room, keep_end=True)}" if trace and room > 0 else text


def _clean(text: str) -> str:
    """Return *text* with what no database takes, NUL and lone surrogates, in escapes."""
    return text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")
