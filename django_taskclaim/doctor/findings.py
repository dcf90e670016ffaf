"""One finding of the doctor."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Self


class Kind(StrEnum):
    """How grave a finding is."""

    #: Something is broken; ``claimdoctor`` exits with 1.
    PROBLEM = "problem"
    #: Worth knowing: why nothing moves, or what could be better.
    NOTE = "note"
    FINE = "fine"


@dataclass(frozen=True, slots=True)
class Finding:
    """A sentence, what to do about it, and further lines (a plan, a statement) that belong to it."""

    kind: Kind
    message: str
    advice: str = ""
    details: tuple[str, ...] = ()

    @classmethod
    def problem(cls, message: str, advice: str, details: tuple[str, ...] = ()) -> Self:
        return cls(Kind.PROBLEM, message, advice, details)

    @classmethod
    def note(cls, message: str, advice: str = "") -> Self:
        return cls(Kind.NOTE, message, advice)

    @classmethod
    def fine(cls, message: str) -> Self:
        return cls(Kind.FINE, message)
