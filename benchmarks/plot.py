"""Draw what ``benchmarks.growth`` wrote: one panel for each database, claims in milliseconds over rows in the table.

    python -m benchmarks.plot postgresql.json mariadb.json --svg docs/images/growth.svg

Lines are medians, one for each share of complete rows; the dashed ones are the 99th percentiles.
"""

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from benchmarks.growth import percentile

#: By the share of complete rows; told apart without seeing colours by their marks, too.
COLOURS = ("#0b6e99", "#b3541e", "#4c7a34", "#6b4c9a")
MARKS = ("circle", "square", "diamond", "circle")

#: Pixels of a panel, and of what is left around its axes.
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 380, 250, 46, 14, 34, 40

STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#222}.small{font-size:11px;fill:#555}.title{font-weight:600}"
    ".axis{stroke:#888}.grid{stroke:#e3e3e3}"
)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plot")
    parser.add_argument("json", nargs="+", type=Path, help="files that benchmarks.growth wrote")
    parser.add_argument("--svg", type=Path, required=True, help="the picture to write")
    return parser.parse_args()


def main(options: argparse.Namespace) -> None:
    runs = [json.loads(path.read_text()) for path in options.json]
    options.svg.write_text("\n".join(picture(runs)) + "\n")


def picture(runs: Sequence[Any]) -> Iterator[str]:
    """Yield the lines of a picture of all runs, two panels in a row, with one legend below."""
    across = min(2, len(runs))
    width, height = WIDTH * across, HEIGHT * math.ceil(len(runs) / 2) + 34
    told = "; ".join(_told(run) for run in runs)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        ' role="img" aria-labelledby="title desc">'
    )
    yield '<title id="title">How long a claim takes while the table grows</title>'
    yield f'<desc id="desc">{escape(told)}</desc>'
    yield f'<style>{STYLE}</style><rect width="{width}" height="{height}" rx="6" fill="#fff"/>'
    for number, run in enumerate(runs):
        yield f'<g transform="translate({number % 2 * WIDTH} {number // 2 * HEIGHT})">'
        yield from Panel(run).drawn()
        yield "</g>"
    yield from _legend(_shares(runs), height - 18, width)
    yield "</svg>"


class Panel:
    """One run: two axes and the lines."""

    def __init__(self, run: Any) -> None:
        self.run = run
        self.tables = [table for table in run["tables"] if not table["waiting"]]
        self.rows = sorted({table["rows"] for table in self.tables})
        longest = max(percentile(table["milliseconds"], 0.99) for table in self.tables)
        self.step = _round_step(longest / 4)
        self.most = self.step * math.ceil(longest / self.step)

    def x(self, rows: int) -> float:
        """Return where so many rows stand on an axis that grows tenfold with each step."""
        low, high = math.log10(self.rows[0]), math.log10(self.rows[-1])
        part = (math.log10(rows) - low) / (high - low) if high > low else 0.5
        return LEFT + part * (WIDTH - LEFT - RIGHT)

    def y(self, milliseconds: float) -> float:
        return HEIGHT - BOTTOM - milliseconds / self.most * (HEIGHT - TOP - BOTTOM)

    def drawn(self) -> Iterator[str]:
        size = self.run["batch_size"]
        title = f"{self.run['database']}: ms for a claim of {size} rows"
        yield f'<text class="title" x="{LEFT}" y="20">{escape(title)}</text>'
        yield from self._axes()
        for number, share in enumerate(_shares([self.run])):
            found = [table for table in self.tables if table["complete"] == share]
            found.sort(key=lambda table: table["rows"])
            for part, dashes in ((0.5, ""), (0.99, ' stroke-dasharray="3 4" stroke-opacity=".6"')):
                points = [
                    (self.x(one["rows"]), self.y(percentile(one["milliseconds"], part)))
                    for one in found
                ]
                line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
                colour = COLOURS[number % len(COLOURS)]
                yield f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>'
                if part == 0.5:
                    yield from (_mark(number, x, y) for x, y in points)

    def _axes(self) -> Iterator[str]:
        bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
        for number in range(round(self.most / self.step) + 1):
            at = number * self.step
            kind = "grid" if number else "axis"
            yield f'<line class="{kind}" x1="{LEFT}" x2="{right}" y1="{self.y(at):.1f}" y2="{self.y(at):.1f}"/>'
            yield f'<text class="small" x="{LEFT - 6}" y="{self.y(at) + 4:.1f}" text-anchor="end">{at:g}</text>'
        for rows in self.rows:
            anchor = "end" if rows == self.rows[-1] else "middle"
            yield f'<text class="small" x="{self.x(rows):.1f}" y="{bottom + 17}" text-anchor="{anchor}">{rows:,}</text>'
        yield f'<text class="small" x="{right}" y="{bottom + 32}" text-anchor="end">rows in the table</text>'


def _shares(runs: Sequence[Any]) -> list[float]:
    return sorted({one["complete"] for run in runs for one in run["tables"] if not one["waiting"]})


def _told(run: Any) -> str:
    """Say in words what the panel shows, for whoever cannot see it."""
    tables = [table for table in run["tables"] if not table["waiting"]]
    few = min(tables, key=lambda table: (table["rows"], table["complete"]))
    many = max(tables, key=lambda table: (table["rows"], table["complete"]))
    first, last = (percentile(table["milliseconds"], 0.5) for table in (few, many))
    return (
        f"{run['database']}: median {first:.1f} ms at {few['rows']:,} rows, {last:.1f} ms at {many['rows']:,} rows"
        f" of which {many['complete']:.0%} are complete"
    )


def _mark(number: int, x: float, y: float) -> str:
    colour = COLOURS[number % len(COLOURS)]
    kind = MARKS[number % len(MARKS)]
    if kind == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>'
    turned = f' transform="rotate(45 {x:.1f} {y:.1f})"' if kind == "diamond" else ""
    return f'<rect x="{x - 3.2:.1f}" y="{y - 3.2:.1f}" width="6.4" height="6.4" fill="{colour}"{turned}/>'


def _legend(shares: Sequence[float], y: int, width: int) -> Iterator[str]:
    apart = 126
    left = (width - apart * len(shares) - 130) / 2
    for number, share in enumerate(shares):
        x = left + number * apart
        yield f'<line x1="{x}" x2="{x + 22}" y1="{y}" y2="{y}" stroke="{COLOURS[number % 4]}" stroke-width="2"/>'
        yield _mark(number, x + 11, y)
        yield f'<text class="small" x="{x + 28}" y="{y + 4}">{share:.0%} complete</text>'
    x = left + apart * len(shares)
    yield f'<line x1="{x}" x2="{x + 22}" y1="{y}" y2="{y}" stroke="#777" stroke-width="2" stroke-dasharray="3 4"/>'
    yield f'<text class="small" x="{x + 28}" y="{y + 4}">99th percentile</text>'


def _round_step(about: float) -> float:
    """Return the next number of 1, 2 and 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(max(about, 1e-6)))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= about)


if __name__ == "__main__":
    main(arguments())
