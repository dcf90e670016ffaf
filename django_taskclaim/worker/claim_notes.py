"""What a process has claimed and started, in memory that outlives it: its successor gives back what had not started.

The supervisor makes the memory and passes it to one child after the other. A claim is noted before its rows can start,
and a row right before its handler does. A claim that was not noted follows its lease, as does a row that had started.
"""

import multiprocessing
import pickle
import struct
import weakref
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from django_taskclaim.claim import clock

#: Bytes for each child: room for several claims of 1,000 rows.
SIZE = 2**19
#: A note takes whole pages, one after the other.
PAGE = 512
#: How a note begins: number of rows, length of the text, checksum. A byte for each row and the text follow.
HEAD = struct.Struct("=III")


def shared_memory() -> object:
    """Return memory that children can be given; None where the machine has none to spare."""
    try:
        return multiprocessing.get_context("spawn").RawArray("B", SIZE)
    except OSError:
        return None


@dataclass(eq=False, slots=True, weakref_slot=True)
class Batch:
    """The rows of one claim, until the last of them is written."""

    left: int
    #: Whether each row has started.
    started: bytearray | memoryview
    #: By ``clock()``, when they were claimed.
    claimed_at: float = field(default_factory=clock)


@dataclass(frozen=True, slots=True)
class Unstarted:
    """Rows of one claim that had not started when the process that held them died."""

    label: str
    holder: str
    keys: list[Any]
    batch: Batch


class Notes:
    """The notes of one process, each kept as long as its ``Batch``. Without memory nothing is noted."""

    def __init__(self, memory: Any = None) -> None:
        self._memory = memoryview(memory or b"").cast("B")
        #: By page, whether a note takes it.
        self._used = bytearray(len(self._memory) // PAGE)
        #: What the processes before this one have left.
        self.unstarted = list(self._read())

    def add(self, batch: Batch, label: str, holder: str, keys: list[Any]) -> None:
        """Note a claim if there is room; *batch* notes its rows there from now on."""
        if not self._used:
            return
        try:
            text = pickle.dumps((label, holder, keys))
        except Exception:
            # A class of the user's that cannot be pickled.
            return
        rows, length = len(keys), len(text)
        page = self._used.find(bytes(_pages(rows, length)))
        if page < 0:
            return
        started, place = self._keep(batch, page, rows, length)
        started[:], place[:] = bytes(rows), text
        # Last: the process may be killed between any two of these writes.
        HEAD.pack_into(self._memory, page * PAGE, rows, length, zlib.crc32(text, rows))

    def _keep(
        self, batch: Batch, page: int, rows: int, length: int
    ) -> tuple[memoryview, memoryview]:
        """Take the pages of a note until its batch is gone, and return where its rows and its text are."""
        pages = _pages(rows, length)
        self._used[page : page + pages] = b"\1" * pages
        weakref.finalize(batch, self._free, page, pages)
        start = page * PAGE + HEAD.size
        batch.started = started = self._memory[start : start + rows]
        return started, self._memory[start + rows : start + rows + length]

    def _free(self, page: int, pages: int) -> None:
        # In this order: a page that is free has no note.
        HEAD.pack_into(self._memory, page * PAGE, 0, 0, 0)
        self._used[page : page + pages] = bytes(pages)

    def _read(self) -> Iterator[Unstarted]:
        """Yield what is noted of claims of which not every row had started; whole notes only."""
        page = 0
        while page < len(self._used):
            rows, length, check = HEAD.unpack_from(self._memory, page * PAGE)
            text = self._memory[page * PAGE + HEAD.size + rows :][:length]
            if not length or zlib.crc32(text, rows) != check:
                page += 1
                continue
            batch = Batch(rows, bytearray())
            started, _ = self._keep(batch, page, rows, length)
            page += _pages(rows, length)
            try:
                label, holder, keys = pickle.loads(text)
            except Exception:
                # Of another version of the user's code.
                continue
            if left := [key for key, has in zip(keys, started, strict=True) if not has]:
                yield Unstarted(label, holder, left, batch)


def _pages(rows: int, length: int) -> int:
    return -(-(HEAD.size + rows + length) // PAGE)
