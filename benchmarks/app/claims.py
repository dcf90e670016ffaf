"""Handlers that do nothing, so that only what the worker costs is seen."""

from benchmarks.app.models import Async, Atomic, Batch, RowByRow, Work
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
