"""The text of an error in its row and in the log: of bounded size, redacted, and acceptable to any database.

The hook ``REDACT`` sees a text before it is cut to size. An exception that cannot be described is recorded all the
same. Only an interrupt of the main thread passes on.
"""

import logging
import threading
import traceback
from collections.abc import Iterator, Mapping
from itertools import islice

from django.utils.module_loading import import_string

from django_taskclaim import conf

#: Characters of one text that the hook gets to see, more than twice as many as a row keeps at most.
SEEN = 65_536
#: Characters that the column of the class holds.
CLASS_LENGTH = 200
#: Innermost frames shown of an exception, and lines of its text with notes and members.
FRAMES, LINES = 20, 20


def class_and_text(error: object) -> tuple[str, str]:
    """Return class and text of an error; the class is empty for what is a text itself.

    Notes and members of an exception group are part of its text.
    """
    text = error if type(error) is str else _raw_text(error)
    return _class_of(error), _cut(redact(text), conf.setting("ERROR_LENGTH"))


def text_to_store(error: object) -> tuple[str, str]:
    """Return what a row keeps of an error: as ``class_and_text``, and with STORE_TRACEBACK also where it came from.

    Of both the text's beginning and the innermost frames are kept.
    """
    name, text = class_and_text(error)
    if not conf.setting("STORE_TRACEBACK") or not isinstance(error, BaseException):
        return name, text
    if trace := _trace(error):
        most = conf.setting("ERROR_LENGTH") - 2
        # Each has half of the room, and what the other leaves of it.
        text = _cut(text, max(most // 2, most - len(trace)))
        text += "\n\n" + _cut(trace, most - len(text), keep_end=True)
    return name, text


def escape_to_ascii(stored: tuple[str, str]) -> tuple[str, str]:
    """Return class and text as every encoding has them."""
    name, text = (part.encode("ascii", "backslashreplace").decode() for part in stored)
    return name[:CLASS_LENGTH], text[: conf.setting("ERROR_LENGTH")]


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
    shown = clean(_cut(text, SEEN, keep_end=keep_end))
    path = conf.setting("REDACT")
    if path is None or not shown:
        return shown
    shown, fault = _call_hook(path, shown)
    if fault:
        return f"<withheld: {fault}>"
    if len(text) > SEEN:
        # The hook saw but half of a secret next to the cut, and may not have known it.
        margin = SEEN // 4
        shown = "…" + shown[margin:] if keep_end else shown[: max(0, len(shown) - margin)] + "…"
    return clean(shown)


def redaction_fault() -> str:
    """Return in words what is wrong with the hook, tried on a harmless text; empty where there is none, or no fault."""
    path = conf.setting("REDACT")
    return "" if path is None else _call_hook(path, "a text to redact")[1]


def log(
    logger: logging.Logger,
    level: int,
    message: str,
    *args: object,
    raised: BaseException | None = None,
    extra: Mapping[str, object] | None = None,
) -> None:
    """Log *message* with the traceback of *raised*.

    Where a hook redacts, or the text is huge or cannot be encoded, the record carries no exception. The traceback is
    then text, in the message and as ``record.traceback``.
    """
    own = "" if raised is None else _raw_text(raised)
    is_plain = len(own) <= SEEN and own == clean(own)
    if raised is None or (is_plain and conf.setting("REDACT") is None):
        logger.log(level, message, *args, exc_info=raised, extra=extra, stacklevel=2)
    elif logger.isEnabledFor(level):
        name, text = class_and_text(raised)
        shown = "\n".join(filter(None, (_trace(raised), f"{name}: {text}" if text else name)))
        facts = {**(extra or {}), "traceback": shown}
        described = message + "\n%s"
        logger.log(level, described, *args, shown, extra=facts, stacklevel=2)


def is_interrupt(error: BaseException) -> bool:
    """Say whether *error* is to end what the main thread does (Ctrl-C, a server's timeout): it must pass on."""
    is_in_main_thread = threading.current_thread() is threading.main_thread()
    return is_in_main_thread and not isinstance(error, Exception)


def _call_hook(path: str, text: str) -> tuple[str, str]:
    """Return what the hook makes of *text*, and what is wrong with it, one of which is empty."""
    try:
        answer = import_string(path)(text)
    except BaseException as error:
        if is_interrupt(error):
            raise
        return "", f"REDACT raised {_class_of(error)}"
    if not isinstance(answer, str):
        return "", f"REDACT returned {type(answer).__name__}, which is no text"
    return answer, ""


# What an exception says


def _class_of(error: object) -> str:
    """Return the dotted name of an exception's class, at most as long as its column; empty for a text."""
    kind = error if isinstance(error, type) else type(error)
    if not issubclass(kind, BaseException):
        return ""
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return _cut(clean(f"{module}{kind.__qualname__}"), CLASS_LENGTH)


def _raw_text(error: object) -> str:
    """Return the text of an error with its notes, and of a group with its first members.

    Where one of them cannot be described, what Python writes then.
    """
    try:
        return "\n".join(islice(_lines(error), LINES))
    except BaseException as failure:
        if is_interrupt(failure):
            raise
        return "<exception str() failed>"


def _lines(error: object, prefix: str = "") -> Iterator[str]:
    yield prefix + _own_text(error)
    notes = getattr(error, "__notes__", None)
    if isinstance(notes, (list, tuple)):
        yield from map(_own_text, notes)
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            yield from _lines(member, f"- {_class_of(member)}: ")


def _own_text(error: object) -> str:
    """Return one character more than is seen of what *error* says, so that ``redact`` knows that it was cut."""
    # An exception class given in place of an instance says nothing.
    return "" if isinstance(error, type) else str(error)[: SEEN + 1]


# Where it came from


def _trace(error: BaseException) -> str:
    """Return the innermost frames of an error, empty for one that was not raised; not those of what led to it."""
    if error.__traceback__ is None:
        return ""
    frames = traceback.format_tb(error.__traceback__, limit=-FRAMES)
    return redact("Traceback (most recent call last):\n" + "".join(frames), keep_end=True).rstrip()


# Sizes


def _cut(text: str, most: int, *, keep_end: bool = False) -> str:
    """Return *text*, of a longer one *most* characters with a mark where it was cut."""
    if len(text) <= most:
        return text
    return "…" + text[len(text) - most + 1 :] if keep_end else text[: most - 1] + "…"


def clean(text: str) -> str:
    """Return *text* with what no database takes, NUL and lone surrogates, in escapes."""
    return text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")
