"""What the commands read from their command line: each wrong word is one clear sentence and exit code 2."""

import math
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Sequence
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, TypeVar

from django.apps import apps
from django.db import connections, router

from django_taskclaim import conf
from django_taskclaim.columns import claim_columns, is_claimable
from django_taskclaim.switch import claimable_models

V = TypeVar("V")


def claimable_model(text: str) -> Any:
    """Return the model that ``app.Model`` names."""
    try:
        model = apps.get_model(text)
    except (LookupError, ValueError) as error:
        raise ArgumentTypeError(f"there is no model {text!r}; {_meant(text)}") from error
    try:
        claim_columns(model)
    except TypeError as error:
        raise ArgumentTypeError(
            f"the model {model._meta.label} cannot be claimed: {error}".rstrip(".")
        ) from error
    return model


def _meant(text: str) -> str:
    """Return the label that was probably meant, in any app and any case."""
    labels = {model._meta.label.lower(): model._meta.label for model in models_to_claim()}
    names = {label.partition(".")[2]: full for label, full in labels.items()}
    known = labels | names
    close = get_close_matches(text.lower(), known, n=1, cutoff=0.7)
    return f"did you mean {known[close[0]]}?" if close else "write app_label.Model"


def database_alias(text: str) -> str:
    """Return the alias of a database that is configured."""
    if text not in connections:
        raise ArgumentTypeError(
            f"there is no database {text!r}; DATABASES has {', '.join(connections)}"
        )
    return text


def whole_number(text: str, *, most: int | None = None) -> int:
    """Return a number from 1 to *most*."""
    kind = conf.whole_number(most=most or math.inf)
    return _checked(kind, text, int(text) if text.isdecimal() else text)


def duration(text: str) -> timedelta:
    """Return a time longer than zero: seconds, or a number with ms, s, m, h or d."""
    return _checked(conf.DURATION, text, text)


def _checked(kind: "conf.Kind[V]", text: str, value: object) -> V:
    try:
        return kind.read(value)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not {kind.expected}") from None


def add_models(parser: ArgumentParser, what: str) -> None:
    """Let the command take any number of models; none means every claimable one."""
    parser.add_argument("models", nargs="*", metavar="app.Model", type=claimable_model, help=what)


def add_model(parser: ArgumentParser, what: str) -> None:
    """Let the command take one model."""
    parser.add_argument("model", metavar="app.Model", type=claimable_model, help=what)


def add_record(parser: ArgumentParser) -> None:
    """Let the command take what goes into the record of acts: ``--reason`` and ``--by``."""
    parser.add_argument("--reason", default="", metavar="TEXT", help="why, for the record")
    parser.add_argument("--by", metavar="NAME", help="who does it, for the record beside user@host")


def add_database(parser: ArgumentParser, default: str) -> None:
    """Let the command take ``--database``."""
    parser.add_argument(
        "--database",
        metavar="ALIAS",
        type=database_alias,
        help=f"the database to work on (default: {default})",
    )


def add_filters(parser: ArgumentParser, which: str) -> None:
    """Let the command take ``--filter``, any number of times; *which* says what it chooses among."""
    parser.add_argument(
        "--filter",
        dest="filters",
        metavar="LOOKUP=VALUE",
        action="append",
        default=[],
        help=f"{which} that match, country=NZ for example; several must all match",
    )


def add_choice_of_rows(parser: ArgumentParser, when: str = "") -> None:
    """Let the command choose rows and be asked before it acts: ``--filter``, ``--limit``, ``--dry-run``, ``--noinput``.

    *when* stands before each help text.
    """
    add_filters(parser, f"{when}only rows")
    parser.add_argument(
        "--limit", metavar="N", type=whole_number, help=f"{when}at most N rows (default: all)"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help=f"{when}count, say what would be done, and do nothing",
    )
    parser.add_argument(
        "--noinput",
        "--no-input",
        dest="interactive",
        action="store_false",
        help=f"{when}do not ask; off a terminal nobody is asked anyway",
    )


def models_to_claim() -> list[Any]:
    """Return every installed model whose rows can be claimed, children before their parents.

    A child's rows follow the child's own policy, and the parent's reaper would judge them by the parent's.
    """
    found = [model for model in claimable_models() if is_claimable(model)]
    return sorted(found, key=lambda model: (-len(model._meta.get_parent_list()), model._meta.label))


def places(models: Sequence[Any], database: str | None) -> list[tuple[Any, str]]:
    """Return each model with the database to look at: the one named, or the one that the router writes to."""
    return [
        (model, database or router.db_for_write(model)) for model in models or models_to_claim()
    ]
