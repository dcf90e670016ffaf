"""What becomes of a row that is done: the completion policies, one class each.

A model has one of them as part of its policy (``@handler(Photo, completion=…)``), and everything that completes rows
follows it: ``complete()``, ``row.complete()``, and workers of every kind. The statements are in ``querysets``.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar, Literal, TypeAlias

from django.db import models
from django.utils.translation import gettext_noop

from django_taskclaim import conf


class Completion:
    """What becomes of a row that is done; one class for each way."""

    __slots__ = ()
    #: What pages and commands note of rows that are done; empty where these stay and can be counted by their state.
    note: ClassVar[str] = ""


@dataclass(frozen=True, slots=True)
class Mark(Completion):
    """The row stays and is ``complete``: the default."""


@dataclass(frozen=True, slots=True)
class Delete(Completion):
    """The row is deleted, as ``delete()`` of a queryset does it: ``on_delete`` is followed and signals are sent.

    Where there is nothing to follow and nobody to hear, that is one statement a batch.
    """

    note: ClassVar[str] = gettext_noop("rows that are done are deleted")


@dataclass(frozen=True, slots=True)
class Archive(Completion):
    """The row is moved to another model on the same database, results and all, in one transaction.

    *to* is that model, on one table of its own. Columns of the same name are copied. What only the archive has takes
    its default, asked for once a statement. The row is then deleted as by ``Delete``.
    """

    to: type[models.Model]
    note: ClassVar[str] = gettext_noop("rows that are done are moved to the archive")

    def __post_init__(self) -> None:
        meta = getattr(self.to, "_meta", None)
        if meta is None or meta.abstract or meta.parents:
            raise TypeError(f"Archive() takes a model on one table, not {self.to!r:.200}.")


@dataclass(frozen=True, slots=True)
class Clear(Completion):
    """The row is open again, to be done once more: due *every* later (seconds or timedelta), or at once.

    It is as good as new but for ``iteration``, which goes on, and ``completed_at``, which tells when it was last done.
    """

    every: timedelta | float | None = conf.option(conf.DURATION)
    note: ClassVar[str] = gettext_noop("rows that are done are open again")

    def __post_init__(self) -> None:
        conf.check_options(self)

    @property
    def pause(self) -> timedelta:
        """How long a row waits for its next turn."""
        return self.every if isinstance(self.every, timedelta) else timedelta()


#: What ``@handler(completion=…)`` takes.
CompletionOption: TypeAlias = Literal["mark", "delete", "clear"] | Completion

_BY_NAME: dict[str, Completion] = {"mark": Mark(), "delete": Delete(), "clear": Clear()}


def as_completion(given: object) -> Completion:
    """Return the policy that *given* names; TypeError in one sentence for what names none."""
    if isinstance(given, Completion):
        return given
    if isinstance(given, str) and given in _BY_NAME:
        return _BY_NAME[given]
    raise TypeError(
        f'completion must be "mark", "delete", "clear", Archive(…) or Clear(…), not {given!r:.200}.'
    )
