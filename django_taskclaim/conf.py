"""The one settings dictionary, ``TASKCLAIM``, and what the values of settings, options and arguments may be.

A setting is read at the moment of use. What a value must be is judged in one place, here, for settings, ``@handler``,
verbs and commands.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import cache
from typing import Any, Generic, TypeAlias, TypeVar

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

V = TypeVar("V")

#: The largest batch anyone may ask for.
MAX_BATCH_SIZE = 1000

#: No number is larger than 18 digits: what has more than 64 bits is an error in every database.
MOST = 10**18 - 1

#: No lease, pause or wait is longer: what lies behind the calendars of the databases would be stored as NULL.
LONGEST = timedelta(days=36500)

# Kinds of values


@dataclass(frozen=True, slots=True)
class Kind(Generic[V]):
    """One kind of value: what is expected, in words, and how a value is read; other values raise ValueError."""

    expected: str
    read: Callable[[Any], V]

    def check(self, value: object, name: str) -> V:
        """Return *value* as it is used inside; ValueError that names it for what is not of this kind."""
        try:
            return self.read(value)
        except ValueError as error:
            # A reader may have a sentence of its own.
            sentence = str(error) or f"{name} must be {self.expected}, not {value!r:.200}."
            raise ValueError(sentence) from None


AnyKind: TypeAlias = Kind[Any]


def accepting(expected: str, accepts: Callable[[Any], bool]) -> AnyKind:
    """Return the kind of the values that *accepts* is true for, which are used as they are."""

    def read(value: object) -> Any:
        if not accepts(value):
            raise ValueError
        return value

    return Kind(expected, read)


def or_none(kind: Kind[V]) -> Kind[V | None]:
    """Return the kind that allows None beside the values of *kind*."""
    expected = f"{kind.expected}, or None"
    return Kind(expected, lambda value: None if value is None else kind.read(value))


def whole_number(least: int = 1, most: int = MOST) -> Kind[int]:
    """Return the kind of the whole numbers from *least* to *most*."""
    expected = f"a whole number from {least}{' on, of 18 digits at most' if most == MOST else f' to {most}'}"
    return accepting(expected, lambda value: type(value) is int and least <= value <= most)


def list_of(expected: str, accepts: Callable[[Any], bool]) -> AnyKind:
    """Return the kind of the lists and tuples whose entries *accepts* is true for."""
    return accepting(
        expected, lambda value: isinstance(value, (list, tuple)) and all(map(accepts, value))
    )


def mapping_of(expected: str, accepts: Callable[[Any, Any], bool]) -> AnyKind:
    """Return the kind of the mappings whose keys and values *accepts* is true for."""
    return accepting(
        expected,
        lambda given: isinstance(given, Mapping) and all(map(accepts, given, given.values())),
    )


# Options of a dataclass


def option(kind: AnyKind, **more: Any) -> Any:
    """Return a field of a dataclass for values of *kind*, and without a default in *more* also for None."""
    return field(metadata={"kind": kind if more else or_none(kind)}, **(more or {"default": None}))


def check_options(options: Any) -> None:
    """Replace what the fields of a dataclass were given by the values that it stands for; ValueError in a sentence."""
    for one in fields(options):
        if (kind := one.metadata.get("kind")) is not None:
            value = kind.check(getattr(options, one.name), one.name.removeprefix("own_"))
            object.__setattr__(options, one.name, value)


# Kinds that are used more than once

_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>ms|s|m|h|d)?")
_SECONDS = {None: 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def _read_duration(value: Any) -> timedelta:
    if isinstance(value, str):
        match = _DURATION.fullmatch(value)
        value = float(match["number"]) * _SECONDS[match["unit"]] if match is not None else 0
    if _is_number(value) and 0 < value <= LONGEST.total_seconds():
        value = timedelta(seconds=value)
    if isinstance(value, timedelta) and timedelta(0) < value <= LONGEST:
        return value
    raise ValueError


def _is_number(value: object) -> bool:
    """Say whether *value* is a number that can be compared: neither a truth value nor NaN."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value


def _matches(pattern: str) -> Callable[[object], bool]:
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None


DURATION = Kind(
    f'a time in seconds, or such as "90s" or "5m", of {LONGEST.days} days at most', _read_duration
)
BATCH_SIZE = whole_number(most=MAX_BATCH_SIZE)
#: A number that may be left out.
NUMBER_OR_NONE = or_none(whole_number())
NUMBER = accepting("a number", _is_number)
COLUMN = accepting("the name of one column", _matches(".+"))
FLAG = accepting("True or False", lambda value: isinstance(value, bool))
#: ``auto`` takes the best claim of each database; the others are for comparison and old servers.
CLAIM_STRATEGIES = ("auto", "update_limit")

#: A number with a digit that is not 0, and a unit of time.
_RATE = r"(?=[0-9.]*[1-9])[0-9]{1,9}(\.[0-9]{1,9})?/[smhd]"
_TIME = "([01][0-9]|2[0-3]):[0-5][0-9]"
#: Two times that differ.
_HOURS = rf"(?P<opens>{_TIME})-(?!(?P=opens))({_TIME}|24:00)"

RATE = accepting("a number of rows a second, minute, hour or day, such as 100/m", _matches(_RATE))
HOURS = accepting("two times of the day that differ, such as 22:00-06:00", _matches(_HOURS))

_TOKEN = accepting("a text of 16 characters or more, without spaces", _matches(r"[!-~]{16,}"))
_SHARE = accepting("a share above 0, up to 1", lambda value: _is_number(value) and 0 < value <= 1)
#: A wrong one must not raise where an error is stored: its user shows nothing then, and E013 says so.
_HOOK = accepting("the dotted path of a function", lambda value: True)
_STRATEGY = accepting(f"one of {', '.join(CLAIM_STRATEGIES)}", CLAIM_STRATEGIES.__contains__)
_LABELS = list_of('a list of models, such as ["photos.Photo"]', _matches(r"[^.]*\.[^.]*"))

#: Every key that ``TASKCLAIM`` may hold: its default, and its kind.
_SETTINGS: Mapping[str, tuple[object, AnyKind]] = {
    "LEASE": (60.0, DURATION),
    "TIMEOUT": (900.0, or_none(DURATION)),
    "BATCH_SIZE": (50, BATCH_SIZE),
    "MAX_ATTEMPTS": (5, whole_number()),
    "BACKOFF_FIRST": (1.0, DURATION),
    "BACKOFF_MAX": (600.0, DURATION),
    "REAPER_INTERVAL": (10.0, DURATION),
    "CHUNK_SIZE": (500, whole_number(most=500)),
    "RETRIES": (2, whole_number(least=0)),
    "ERROR_LENGTH": (4000, whole_number(least=100, most=32_000)),
    "STORE_TRACEBACK": (False, FLAG),
    "REDACT": (None, _HOOK),
    "CLAIM_STRATEGY": ("auto", _STRATEGY),
    "FIXTURES_WRITE_CLAIMS": (False, FLAG),
    "HEALTH_EVERY": (10.0, DURATION),
    "BREAKER": (None, or_none(_SHARE)),
    "BREAKER_OUTCOMES": (20, whole_number()),
    "BREAKER_WITHIN": (60.0, DURATION),
    "BREAKER_REST": (30.0, DURATION),
    "PAGE_TIMEOUT": (1.5, DURATION),
    "HISTORY": ((), _LABELS),
    "RETENTION": (2592000.0, DURATION),
    "METRICS_TOKEN": (None, or_none(_TOKEN)),
}

DEFAULTS: dict[str, Any] = {name: default for name, (default, _) in _SETTINGS.items()}

SETTING = "TASKCLAIM"

# Reading the settings


def setting(name: str) -> Any:
    """Return the value of one key of ``TASKCLAIM``, or its default; a duration as a timedelta.

    Raises KeyError for an unknown key and ImproperlyConfigured for a value that E001 reports.
    """
    given = _given()
    try:
        return _checked(name, given[name]) if name in given else _default(name, DEFAULTS[name])
    except ValueError as error:
        raise ImproperlyConfigured(str(error)) from None


def _given() -> Mapping[str, object]:
    """Return the dictionary; an empty one in place of what is none, which E001 reports."""
    given = getattr(settings, SETTING, {})
    return given if isinstance(given, Mapping) else {}


def _checked(name: str, value: object) -> Any:
    return _SETTINGS[name][1].check(value, f"{SETTING}[{name!r}]")


_default = cache(_checked)


def is_given(name: str) -> bool:
    """Say whether the project has set one key of ``TASKCLAIM``."""
    return name in _given()


#: ``setting``, for one that is a duration.
duration: Callable[[str], timedelta] = setting


def waiting_time(value: float | timedelta, what: str = "delay") -> timedelta:
    """Return how long a row waits, from nothing to LONGEST; ValueError in one sentence for what is no duration."""
    if isinstance(value, timedelta):
        return min(max(value, timedelta(0)), LONGEST)
    if not _is_number(value):
        raise ValueError(f"{what} must be seconds or a timedelta, not {value!r:.200}.")
    return timedelta(seconds=min(max(value, 0), LONGEST.total_seconds()))


def problems() -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the dictionary, each with a hint, for the system checks."""
    if not isinstance(given := getattr(settings, SETTING, {}), Mapping):
        yield f"{SETTING} must be a dictionary, not {given!r:.200}.", f"{SETTING} = {{}}"
    for name, value in _given().items():
        try:
            _checked(name, value)
        except KeyError:
            yield f"{SETTING} has no key {name!r}.", f"Known keys: {', '.join(sorted(_SETTINGS))}."
        except ValueError as error:
            yield str(error), f'{SETTING} = {{"{name}": {DEFAULTS[name]!r}}}  # the default'
