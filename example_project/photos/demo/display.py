"""The two faces of the demo: live on a terminal, a line every few seconds anywhere else."""

import logging
import math
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TextIO

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.constrain import Constrain
from rich.live import Live
from rich.panel import Panel
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from .scene import Condition, News, Scene, WorkerLine

COMPLETE, FAILED, HELD, WAITING, OPEN = "green", "red", "cyan", "yellow", "bright_black"
SPARKS = "▁▂▃▄▅▆▇█"
NEWS_LINES = 6
WIDEST = 100

MOODS = {
    Condition.STARTING: ("…", "yellow"),
    Condition.WORKING: ("●", "green"),
    Condition.PAUSED: ("‖", "yellow"),
    Condition.STOPPING: ("◌", "yellow"),
    Condition.STOPPED: ("○", "bright_black"),
    Condition.KILLED: ("✗", "bold red"),
    Condition.DEAD: ("✗", "bold red"),
}


@dataclass(frozen=True, slots=True)
class Playbill:
    """What stays the same during a demo: its title, and what to try meanwhile."""

    title: str
    pause: str
    resume: str
    #: The address of the control room.
    room: str


class Display(Protocol):
    """Shows one scene after the other."""

    def show(self, scene: Scene) -> None:
        """Show how things are now."""


@contextmanager
def display(playbill: Playbill, out: TextIO = sys.stdout) -> Iterator[Display]:
    """The live display where `out` is a terminal, else the plain one."""
    console = Console(file=out)
    if not console.is_terminal:
        yield PlainDisplay(playbill, out)
        return
    with Live(console=console, auto_refresh=False) as live, logs_above():
        yield LiveDisplay(playbill, live)


@contextmanager
def logs_above() -> Iterator[None]:
    """Log lines appear above the live display; written to the terminal behind its back they would tear it."""
    found = [*logging.getLogger().handlers, *logging.getLogger("django").handlers]
    streams = [handler for handler in found if type(handler) is logging.StreamHandler]
    before = [handler.stream for handler in streams]
    for handler in streams:
        # The display has put itself in the place of it.
        handler.setStream(sys.stderr)
    try:
        yield
    finally:
        for handler, stream in zip(streams, before, strict=True):
            handler.setStream(stream)


class PlainDisplay:
    """A line every few seconds, and each piece of news once."""

    EVERY = 3.0

    def __init__(self, playbill: Playbill, out: TextIO) -> None:
        self._out = out
        self._next = 0.0
        self._told = -1.0
        self._paused: str | None = None
        self._say(f"{playbill.title}\nTo pause, from another terminal:  {playbill.pause}")
        self._say(f"To go on:                         {playbill.resume}")
        self._say(f"The control room (demo, demo):    {playbill.room}")

    def show(self, scene: Scene) -> None:
        """Print what is new since the last scene, and where things stand when it is time."""
        for news in scene.news:
            if news.at > self._told:
                self._say(f"{clock(news.at)}  {news.text}")
                self._told = news.at
        if scene.elapsed >= self._next:
            self._say(standing(scene))
            self._next = scene.elapsed + self.EVERY

    def _say(self, text: str) -> None:
        print(text, file=self._out, flush=True)


def standing(scene: Scene) -> str:
    """Where things stand, in one line."""
    workers = " ".join(f"{worker.name} {worker.done:,}" for worker in scene.workers)
    return (
        f"{clock(scene.elapsed)}  {'PAUSED ' if scene.paused else ''}"
        f"{scene.finished:,} of {scene.total:,} ({scene.share:.1%}), {scene.failed:,} failed, "
        f"{scene.held:,} held, {scene.waiting:,} waiting, "
        f"{scene.pace.rate:,.0f} rows/s, ETA {eta(scene)}; {workers}"
    )


class LiveDisplay:
    """One picture of everything, drawn over the last one."""

    def __init__(self, playbill: Playbill, live: Live) -> None:
        self._playbill = playbill
        self._live = live

    def show(self, scene: Scene) -> None:
        """Draw the scene."""
        self._live.update(stage(self._playbill, scene), refresh=True)


def stage(playbill: Playbill, scene: Scene) -> RenderableType:
    """The whole picture."""
    body = Group(
        bar(scene), Text(), counts(scene), Text(), pace(scene), Text(), workers(scene.workers)
    )
    return Group(
        Constrain(
            Panel(
                body,
                title=headline(playbill, scene),
                title_align="left",
                subtitle=Text(clock(scene.elapsed), style="bold"),
                subtitle_align="right",
                border_style="yellow" if scene.paused else "green",
                padding=(1, 2),
            ),
            WIDEST,
        ),
        news(scene.news),
        hint(playbill, scene),
    )


def headline(playbill: Playbill, scene: Scene) -> Text:
    """What is being done, and a banner while it is not."""
    if scene.paused:
        return Text.assemble((" PAUSED ", "bold black on yellow"), f" {scene.paused}")
    return Text(playbill.title, style="bold")


def bar(scene: Scene) -> RenderableType:
    """The rows as a bar, in the colours of their states, with the finished share behind it."""
    parts = [
        (scene.complete, COMPLETE),
        (scene.failed, FAILED),
        (scene.held, HELD),
        (scene.waiting, WAITING),
        (scene.open, OPEN),
    ]
    line = Table.grid(expand=True, padding=(0, 0, 0, 2))
    line.add_column(ratio=1)
    line.add_column(justify="right", width=8)
    line.add_row(Bar(parts), Text(f"{scene.share:.1%}", style="bold"))
    return line


@dataclass(frozen=True, slots=True)
class Bar:
    """A line as wide as there is room, divided in proportion."""

    parts: Iterable[tuple[int, str]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        parts = [(amount, colour) for amount, colour in self.parts if amount]
        cells = apportion([amount for amount, _ in parts], options.max_width)
        for (_, colour), width in zip(parts, cells, strict=True):
            yield Segment("━" * width, Style.parse(colour))


def apportion(amounts: list[int], cells: int) -> list[int]:
    """Whole cells in proportion to the amounts, adding up to `cells`, none of them empty."""
    total = sum(amounts)
    widths = [max(1, cells * amount // total) for amount in amounts]
    if widths:
        widest = widths.index(max(widths))
        widths[widest] += cells - sum(widths)
    return widths


def counts(scene: Scene) -> Text:
    """How many rows are in which state."""
    parts = [
        ("complete", scene.complete, COMPLETE),
        ("failed", scene.failed, FAILED),
        ("held", scene.held, HELD),
        ("waiting to be tried again", scene.waiting, WAITING),
        ("open", scene.open, OPEN),
    ]
    text = Text()
    for name, amount, colour in parts:
        text.append("■ ", style=colour)
        text.append(f"{amount:,}", style="bold")
        text.append(f" {name}   ")
    return text


def pace(scene: Scene) -> Text:
    """Rows a second with the last minute as a curve, and when it will be over."""
    return Text.assemble(
        (f"{scene.pace.rate:,.0f}", "bold"),
        " rows/s  ",
        (sparkline(scene.pace.history), HELD),
        "  ETA ",
        (eta(scene), "bold"),
    )


def sparkline(values: Iterable[float]) -> str:
    """One little column for each value, the highest at full height."""
    values = list(values)
    top = max(values, default=0) or 1
    return "".join(SPARKS[round(value / top * (len(SPARKS) - 1))] for value in values)


def workers(lines: Iterable[WorkerLine]) -> Table:
    """A line for each worker."""
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="bright_black", pad_edge=False)
    table.add_column("worker")
    table.add_column("", min_width=10)
    for name in ("process", "done", "failed", "put back", "held now"):
        table.add_column(name, justify="right")
    for line in lines:
        sign, style = MOODS[line.condition]
        table.add_row(
            Text(line.name, style="bold"),
            Text(f"{sign} {line.condition.value}", style=style),
            str(line.pid),
            f"{line.done:,}",
            f"{line.failed:,}",
            f"{line.put_back:,}",
            Text(f"{line.held:,}", style=HELD if line.held else OPEN),
        )
    return table


def news(items: Iterable[News]) -> Text:
    """The latest news, each on a line."""
    latest = list(items)[-NEWS_LINES:]
    text = Text()
    for item in latest:
        text.append(f"  {clock(item.at)}  ", style=OPEN)
        text.append(f"{item.text}\n")
    return text


def hint(playbill: Playbill, scene: Scene) -> Text:
    """What the reader may try from another terminal."""
    if scene.finished == scene.total:
        return Text()
    what, command = ("resume", playbill.resume) if scene.paused else ("pause", playbill.pause)
    return Text.assemble(
        f"  To {what}, from another terminal:  ",
        (command, "bold cyan"),
        "\n  The control room (demo, demo):    ",
        (playbill.room, "bold cyan"),
    )


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def eta(scene: Scene) -> str:
    """How long it will take from here."""
    if scene.paused or scene.seconds_left is None:
        return "–"
    return clock(math.ceil(scene.seconds_left))
