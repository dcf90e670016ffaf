"""The one settings dictionary, ``TASKCLAIM``: defaults beside it, read at the moment of use."""

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

#: Every key that ``TASKCLAIM`` may hold, with its default. Durations are seconds, timedeltas, or texts such as "5m".
DEFAULTS: Mapping[str, Any] = {
    "LEASE": 60.0,
    "TIMEOUT": 900.0,
    "BATCH_SIZE": 50,
    "CONCURRENCY": 10,
    "MAX_ATTEMPTS": 5,
    "BACKOFF_FIRST": 1.0,
    "BACKOFF_MAX": 600.0,
    "POLL": 1.0,
    "GRACE": 8.0,
    "REAPER_INTERVAL": 10.0,
    "CHUNK_SIZE": 500,
    "RETRIES": 2,
    "ERROR_LENGTH": 4000,
    "STORE_TRACEBACK": False,
    "FAIL_UNSAVED": None,
    "REDACT": None,
    "CLAIM_STRATEGY": "auto",
    "FIXTURES_WRITE_CLAIMS": False,
    "WORKER_RETENTION": 86400.0,
    "HEALTH_CHECKS": (),
    "HEALTH_EVERY": 10.0,
    "BREAKER": None,
    "PAGE_TIMEOUT": 1.5,
    "HISTORY": (),
    "HISTORY_RETENTION": 604800.0,
    "THROUGHPUT_RETENTION": 604800.0,
    "ACT_RETENTION": 7776000.0,
}

#: ``auto`` takes the best claim of each database; the others are for comparison and old servers.
CLAIM_STRATEGIES = ("auto", "update_limit")

#: What ``BREAKER`` may hold; a key that is left out has this value.
BREAKER_DEFAULTS: Mapping[str, Any] = {"rate": 0.5, "outcomes": 20, "within": 60.0, "rest": 30.0}

#: The largest batch anyone may ask for.
MAX_BATCH_SIZE = 1000

#: No lease, pause or wait is longer: what lies behind the calendars of the databases would be stored as NULL.
LONGEST = timedelta(days=36500)

SETTING = "TASKCLAIM"

#: The last value of each key that was found right: the same object is not looked at again.
_accepted: dict[str, Any] = {}


def setting(name: str) -> Any:
    """Return the value of one key of ``TASKCLAIM``, or its default. KeyError for an unknown key.

    ImproperlyConfigured for a value that E001 reports; a wrong REDACT is returned, because its user then shows nothing.
    """
    default = DEFAULTS[name]
    values = getattr(settings, SETTING, {})
    if not isinstance(values, Mapping):
        raise ImproperlyConfigured(_no_dictionary(values).message)
    value = values.get(name, default)
    if value is not _accepted.get(name, default) and value is not default and name != "REDACT":
        if problem := _problem(name, value):
            raise ImproperlyConfigured(problem.message)
        _accepted[name] = value
    return value


def given(name: str) -> Any:
    """Return what the project has set for one key of ``TASKCLAIM``; None where it leaves that to us."""
    return setting(name) if name in getattr(settings, SETTING, {}) else None


def duration(name: str) -> timedelta:
    """Return a setting that is a duration."""
    return as_duration(setting(name))


def waiting_time(value: float | timedelta, what: str = "delay") -> timedelta:
    """Return how long a row waits, from nothing to LONGEST; ValueError in one sentence for what is no duration."""
    if not _is_number(value) and not isinstance(value, timedelta):
        raise ValueError(f"{what} must be seconds or a timedelta, not {value!r:.200}.")
    try:
        result = as_duration(value)
    except OverflowError:
        result = LONGEST if value > 0 else timedelta(0)  # type: ignore[operator]
    return min(max(result, timedelta(0)), LONGEST)


def _is_number(value: Any) -> bool:
    """Say whether *value* is a number that can be compared: neither a truth value nor NaN."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value


def as_duration(value: float | str | timedelta) -> timedelta:
    """Accept seconds, or a text such as "5m", at the edge, and work with timedeltas inside."""
    if isinstance(value, str):
        return parse_duration(value)
    return value if isinstance(value, timedelta) else timedelta(seconds=value)


_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>ms|s|m|h|d)?")
_SECONDS = {None: 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration(text: str) -> timedelta:
    """Return a time longer than zero: seconds, or a number with ms, s, m, h or d; else ValueError."""
    match = _DURATION.fullmatch(text)
    seconds = float(match["number"]) * _SECONDS[match["unit"]] if match is not None else 0.0
    if not 0 < seconds <= LONGEST.total_seconds():
        raise ValueError(
            f"{text!r} is no time longer than zero; write seconds, or 500ms, 30s, 5m, 2h, 1d"
        )
    return timedelta(seconds=seconds)


def positive_duration(value: float | timedelta, what: str) -> timedelta:
    """Return *value* as a timedelta longer than zero; ValueError in one sentence otherwise."""
    if isinstance(value, bool) or not isinstance(value, (int, float, timedelta)):
        raise ValueError(f"{what} must be seconds or a timedelta, not {value!r}.")
    try:
        result = as_duration(value)
    except (OverflowError, ValueError):  # infinity, no number
        result = timedelta.max
    if result > LONGEST:
        raise ValueError(f"{what} must be shorter than {LONGEST.days} days, not {value!r}.")
    if result <= timedelta(0):
        raise ValueError(f"{what} must be longer than zero, not {value!r}.")
    return result


class Problem(NamedTuple):
    """One wrong entry of the settings dictionary."""

    key: str
    message: str
    hint: str


def _is_duration(value: Any) -> bool:
    try:
        positive_duration(parse_duration(value) if isinstance(value, str) else value, "")
    except ValueError:
        return False
    return True


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_count_or_zero(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_path_or_none(value: Any) -> bool:
    return value is None or (isinstance(value, str) and "." in value)


def _is_batch(value: Any) -> bool:
    return _is_count(value) and value <= MAX_BATCH_SIZE


def _are_checks(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(
        callable(entry) or isinstance(entry, str) for entry in value
    )


def _are_labels(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(
        isinstance(entry, str) and entry.count(".") == 1 for entry in value
    )


def _is_breaker(value: Any) -> bool:
    if value is None:
        return True
    if not isinstance(value, Mapping) or not BREAKER_DEFAULTS.keys() >= value.keys():
        return False
    told = {**BREAKER_DEFAULTS, **value}
    durations = _is_duration(told["within"]) and _is_duration(told["rest"])
    return durations and _is_share(told["rate"]) and _is_count(told["outcomes"])


def _is_share(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= 1


_DURATIONS = 'seconds above 0, a timedelta, or a text such as "90s" or "5m"'
_RULES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "BATCH_SIZE": (_is_batch, f"a whole number from 1 to {MAX_BATCH_SIZE}"),
    "CONCURRENCY": (_is_count, "a whole number from 1"),
    "MAX_ATTEMPTS": (_is_count, "a whole number from 1"),
    "CHUNK_SIZE": (_is_batch, f"a whole number from 1 to {MAX_BATCH_SIZE}"),
    "RETRIES": (_is_count_or_zero, "a whole number from 0"),
    "ERROR_LENGTH": (_is_count, "a whole number from 1"),
    "STORE_TRACEBACK": (_is_flag, "True or False"),
    "FIXTURES_WRITE_CLAIMS": (_is_flag, "True or False"),
    "FAIL_UNSAVED": (lambda value: value is None or _is_flag(value), "True, False or None"),
    "REDACT": (_is_path_or_none, "the dotted path of a function, or None"),
    "CLAIM_STRATEGY": (CLAIM_STRATEGIES.__contains__, f"one of {', '.join(CLAIM_STRATEGIES)}"),
    "HEALTH_CHECKS": (_are_checks, "a list of health checks, or of dotted paths to some"),
    "HISTORY": (_are_labels, 'a list of models, such as ["photos.Photo"]'),
    "BREAKER": (
        _is_breaker,
        "None, or a dictionary with some of: rate above 0 and up to 1, outcomes from 1, within and rest in seconds",
    ),
    "TIMEOUT": (lambda value: value is None or _is_duration(value), f"{_DURATIONS}, or None"),
}
_DURATION_RULE = (_is_duration, _DURATIONS)


def problems() -> Iterator[Problem]:
    """Yield what is wrong with the dictionary, for the system checks."""
    given = getattr(settings, SETTING, {})
    if not isinstance(given, Mapping):
        yield _no_dictionary(given)
        return
    yield from filter(None, (_problem(key, value) for key, value in given.items()))


def _no_dictionary(given: Any) -> Problem:
    return Problem("", f"{SETTING} is {given!r:.200}, not a dictionary.", f"{SETTING} = {{}}")


def _problem(key: Any, value: Any) -> Problem | None:
    if key not in DEFAULTS:
        known = ", ".join(sorted(DEFAULTS))
        return Problem(key, f"{SETTING} has no key {key!r}.", f"Known keys: {known}.")
    accepts, expected = _RULES.get(key, _DURATION_RULE)
    if accepts(value):
        return None
    return Problem(
        key,
        f"{SETTING}[{key!r}] is {value!r:.200}; expected {expected}.",
        f'{SETTING} = {{"{key}": {DEFAULTS[key]!r}}}  # the default',
    )
