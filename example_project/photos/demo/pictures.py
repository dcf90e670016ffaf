"""Thousands of distinct small pictures, painted once and kept on disk.

Each is a landscape (sky, sun, some ridges of hills) whose size, colours and shapes follow from the
seed and the picture's number alone, so a second run finds the very same files.
"""

import colorsys
import io
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageOps

Colour = tuple[int, int, int]

DISTINCT = 5_000
"""Rows beyond this many show a picture again, under a URL of their own."""

WIDTHS = (200, 240, 280, 320, 360)
HEIGHTS = (150, 180, 200, 240, 270)
PNG_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class PictureBook:
    """The pictures of one seed, in a folder; `paint()` makes those that are missing."""

    folder: Path
    seed: int
    size: int

    def path(self, number: int) -> Path:
        """Where the picture lies that row `number` shows."""
        number %= self.size
        suffix = "png" if self._chance(number).random() < PNG_SHARE else "jpg"
        return self.folder / f"{number:05d}.{suffix}"

    def paint(self) -> int:
        """Paint what is missing and return how many that were."""
        self.folder.mkdir(parents=True, exist_ok=True)
        missing = list(self._missing())
        for path in missing:
            # Renamed into place, so an interrupted run leaves no half picture behind.
            draft = path.with_suffix(".part")
            draft.write_bytes(self._picture(int(path.stem), path.suffix))
            draft.replace(path)
        return len(missing)

    def _missing(self) -> Iterator[Path]:
        there = {path.name for path in self.folder.iterdir()}
        paths = (self.path(number) for number in range(self.size))
        return (path for path in paths if path.name not in there)

    def _picture(self, number: int, suffix: str) -> bytes:
        chance = self._chance(number)
        chance.random()  # was the format
        picture = landscape(chance)
        target = io.BytesIO()
        if suffix == ".png":
            picture.quantize(64).save(target, "PNG", compress_level=1)
        else:
            picture.save(target, "JPEG", quality=82)
        return target.getvalue()

    def _chance(self, number: int) -> random.Random:
        return random.Random(f"{self.seed}/{number}")


def landscape(chance: random.Random) -> Image.Image:
    """A sky with a sun and a few ridges before it, each darker than the one behind."""
    size = (chance.choice(WIDTHS), chance.choice(HEIGHTS))
    hue = chance.random()
    picture = sky(size, hue, chance)
    draw = ImageDraw.Draw(picture)
    sun(draw, size, hue, chance)
    ridges = chance.randint(2, 4)
    for nearness in range(1, ridges + 1):
        ridge(draw, size, hue, nearness / ridges, chance)
    return picture


def sky(size: tuple[int, int], hue: float, chance: random.Random) -> Image.Image:
    """A vertical run from one colour through a second to a third."""
    fading = Image.linear_gradient("L").resize(size)
    return ImageOps.colorize(
        fading,
        black=shade(hue, 0.7, 0.4 + 0.4 * chance.random()),
        mid=shade(hue + 0.1 * chance.random(), 0.5, 0.9),
        white=shade(hue + 0.4, 0.3, 1.0),
    )


def sun(
    draw: ImageDraw.ImageDraw, size: tuple[int, int], hue: float, chance: random.Random
) -> None:
    """A disc somewhere in the upper half."""
    radius = size[1] * (0.05 + 0.12 * chance.random())
    x, y = size[0] * chance.random(), size[1] * 0.5 * chance.random()
    draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=shade(hue + 0.5, 0.25, 1.0))


def ridge(
    draw: ImageDraw.ImageDraw,
    size: tuple[int, int],
    hue: float,
    nearness: float,
    chance: random.Random,
) -> None:
    """Hills from edge to edge; the nearer, the lower and the darker."""
    width, height = size
    top = height * (0.35 + 0.5 * nearness)
    peaks = chance.randint(4, 12)
    outline = [
        (width * peak / peaks, top - height * 0.3 * chance.random()) for peak in range(peaks + 1)
    ]
    outline += [(width, height), (0, height)]
    draw.polygon(outline, fill=shade(hue + 0.3 * nearness, 0.6, 0.75 * (1.05 - nearness) + 0.12))


def shade(hue: float, saturation: float, brightness: float) -> Colour:
    """Hue, saturation and brightness (0 to 1, the hue wraps around) as red, green and blue."""
    red, green, blue = colorsys.hsv_to_rgb(hue % 1, saturation, min(brightness, 1))
    return round(red * 255), round(green * 255), round(blue * 255)
