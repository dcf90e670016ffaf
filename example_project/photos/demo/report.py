"""The account as the reader sees it."""

from collections import Counter
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.constrain import Constrain
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from .account import Account, Times
from .story import clock

COMPLETE, FAILED, HELD = "green", "red", "cyan"
WIDEST = 100


def tell(account: Account, *, elapsed: float, again: Path, console: Console) -> None:
    """Print the account."""
    problems = account.problems()
    verdict = Text("The account does not add up.", style="bold red")
    if not problems:
        verdict = Text("Everything adds up.", style="bold green")
    parts: list[RenderableType] = [
        sums(account, elapsed),
        Text(),
        put_backs(account),
        Text(f"Each of them, with its reasons: {again}", style="bright_black"),
        Text(),
        times(account),
        Text(),
        witnesses(account),
        Text(),
        verdict,
        *(Text(f"  {problem}", style="red") for problem in problems),
    ]
    style = "red" if problems else "green"
    title = Text("Account", style="bold")
    panel = Panel(
        Group(*parts), title=title, title_align="left", border_style=style, padding=(1, 2)
    )
    console.print(Constrain(panel, WIDEST))


def ledger_table() -> Table:
    """Amounts on the left, what they are on the right."""
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", min_width=8)
    table.add_column()
    return table


def add_reasons(table: Table, reasons: Counter[str]) -> None:
    """A line for each reason, the most frequent first."""
    for reason, count in reasons.most_common():
        table.add_row("", Text(f"{count:,}  {reason}", style="bright_black"))


def sums(account: Account, elapsed: float) -> Table:
    """Every row made, by where it ended."""
    table = ledger_table()
    rate = account.made / elapsed if elapsed else 0
    table.add_row(
        f"{account.made:,}", f"rows made, done in {clock(elapsed)} ({rate:,.0f} a second)"
    )
    table.add_row(Text(f"{account.complete:,}", style=COMPLETE), "complete")
    table.add_row(Text(f"{account.failed:,}", style=FAILED), "failed")
    add_reasons(table, account.failures)
    table.add_row(Text(f"{account.missing:,}", style="bold"), "missing")
    return table


def put_backs(account: Account) -> Table:
    """How often rows were put back and claimed again, and why."""
    table = ledger_table()
    most = max((row.claims for row in account.again), default=1)
    table.add_row(
        Text(f"{len(account.again):,}", style=HELD),
        f"rows claimed more than once (at most {most} times), because they were put back",
    )
    table.add_row(f"{account.put_back:,}", "times put back")
    add_reasons(table, account.reasons)
    return table


def times(account: Account) -> Table:
    """Percentiles of what the queue itself cost."""
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="bright_black", pad_edge=False)
    table.add_column("statement")
    for name in ("count", "p50", "p99"):
        table.add_column(name, justify="right")
    table.add_row("claim a batch", *cells(account.claims))
    table.add_row("release: complete, fail, put back", *cells(account.releases))
    return table


def cells(times: Times) -> tuple[str, str, str]:
    """Count, median and 99th percentile."""
    p50, p99 = (f"{times.percentile(share) * 1000:.1f} ms" for share in (0.50, 0.99))
    return f"{len(times.seconds):,}", p50, p99


def witnesses(account: Account) -> Table:
    """What the server and the pictures themselves say."""
    table = ledger_table()
    table.add_row(
        f"{account.asked_too_often:,}", "pictures downloaded more often than their row was claimed"
    )
    table.add_row(
        f"{account.different:,}",
        f"differences in {account.compared:,} rows that were compared with their picture",
    )
    return table
