"""The account as the terminal shows it, while the work goes on and at the end."""

from collections import Counter
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table

from .account import Account

COLOURS = {"open": "bright_black", "processing": "cyan", "complete": "green", "failed": "red"}


def picture(account: Account, problems: Sequence[str] | None = None) -> Panel:
    """All numbers of the account; at the end, when the problems are known, with a verdict."""
    parts: list[RenderableType] = [
        headline(account),
        ProgressBar(total=account.made, completed=account.finished),
        "\n",
        processes(account),
        "",
        reasons(account),
    ]
    colour = "none"
    if problems is not None:
        colour = "red" if problems else "green"
        verdict = "The account does not add up." if problems else "Everything adds up."
        parts += ["", f"[bold {colour}]{verdict}[/]", *problems]
    return Panel(Group(*parts), title="photos.Photo", title_align="left", border_style=colour)


def headline(account: Account) -> str:
    """How far, how long and how fast."""
    rate = account.finished / (account.elapsed or 1)
    done = f"{account.finished:,} of {account.made:,} rows"
    paused = ", [yellow]paused[/]" if account.is_paused else ""
    return f"{done} in {clock(account.elapsed)}, {rate:,.0f} rows a second{paused}"


def processes(account: Account) -> Table:
    """Every row, by its state and by the process that has, or had, its last claim."""
    table = Table(box=None, padding=(0, 3, 0, 0), show_footer=True)
    table.add_column("process", "all")
    for state, colour in COLOURS.items():
        name = "running" if state == "processing" else state
        table.add_column(name, f"{account.states[state]:,}", justify="right", style=colour)
    for process, states in sorted(account.processes.items()):
        name = f"{process} [red]killed[/]" if process == account.killed else process
        table.add_row(name, *(f"{states[state]:,}" for state in COLOURS))
    return table


def reasons(account: Account) -> Table:
    """How often rows failed or were put back, and why."""
    counts = Counter(reason for reasons in account.reasons.values() for reason in reasons)
    table = Table(box=None, padding=(0, 3, 0, 0))
    table.add_column("times", justify="right")
    table.add_column("why a row failed or was put back")
    for reason, count in counts.most_common():
        table.add_row(f"{count:,}", reason)
    return table


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
