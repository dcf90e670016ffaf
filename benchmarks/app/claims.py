"""Handlers that do nothing, so that only what the worker costs is seen."""

import os
import time

from benchmarks.app.models import (
    Async,
    Atomic,
    Batch,
    Called,
    Polled,
    RowByRow,
    Wide,
    WideBatch,
    WideResults,
    Work,
)
from django_taskclaim import handler


@handler(Work)
def do(row: Work) -> None:
    """Leave the completion to the worker, which writes many at a time."""


@handler(RowByRow)
def complete(row: RowByRow) -> None:
    row.claim.complete()


@handler(Atomic, atomic=True, timeout=15)
def do_atomically(row: Atomic) -> None:
    """Leave the completion to the worker, which writes it in this transaction."""


@handler(Batch, batch=True)
def do_together(rows: list[Batch]) -> None:
    """All are done."""


@handler(Async)
async def do_asynchronously(row: Async) -> None:
    """Leave the completion to the worker."""


@handler(Wide)
def do_wide(row: Wide) -> None:
    """Leave the completion to the worker."""


@handler(WideBatch, batch=True)
def do_wide_together(rows: list[WideBatch]) -> None:
    """All are done."""


@handler(WideResults, update_fields=["text7", "number8"])
def measure_wide(row: WideResults) -> None:
    row.text7 = f"{row.pk:024}"
    row.number8 = row.pk


@handler(Polled)
def tell_when_found(row: Polled) -> None:
    tell(row.pk)


@handler(Called, wake_up=True)
def tell_when_called(row: Called) -> None:
    tell(row.pk)


def tell(key: int) -> None:
    """Write the moment into the pipe that ``benchmarks.latency`` reads."""
    moment = time.monotonic()
    with open(os.environ["BENCHMARK_PIPE"], "w") as pipe:
        pipe.write(f"{key} {moment}\n")
