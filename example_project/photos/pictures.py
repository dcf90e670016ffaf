"""Pillow's part: what a picture is like, and pictures to try that with."""

from io import BytesIO
from random import Random

from PIL import Image, ImageDraw, ImageOps

from .models import Photo


def describe(photo: Photo, data: bytes) -> None:
    """Set what there is to know about the picture in `data`; Pillow's own errors where it is no picture."""
    with Image.open(BytesIO(data)) as source:
        picture = source.convert("RGB")
    photo.width, photo.height = picture.size
    photo.average_colour = "#" + picture.resize((1, 1), Image.Resampling.BOX).tobytes().hex()
    picture.thumbnail((96, 96))
    photo.thumbnail = jpeg(picture)


def paint(number: int) -> bytes:
    """A landscape at some time of the day: always the same one for a number."""
    chance = Random(number)
    width, height, hue = chance.randint(200, 360), chance.randint(150, 270), chance.randrange(360)
    sky = Image.linear_gradient("L").resize((width, height))
    colours = {"black": shade(hue, 35), "mid": shade(hue + 30, 75), "white": shade(hue + 60, 90)}
    picture = ImageOps.colorize(sky, **colours)
    draw = ImageDraw.Draw(picture)
    x, y, size = chance.randrange(width), height * 0.2, height * 0.2
    draw.ellipse((x, y, x + size, y + size), fill=shade(hue + 60, 95))
    for ridge in range(1, 4):
        peaks = [(width * x / 6, height * (0.2 * ridge + 0.4 * chance.random())) for x in range(7)]
        hills = [(0, height), *peaks, (width, height)]
        draw.polygon(hills, fill=shade(hue + 90, 50 - 12 * ridge))
    return jpeg(picture)


def shade(hue: int, lightness: int) -> str:
    """A colour as Pillow and CSS write it."""
    return f"hsl({hue % 360}, 50%, {lightness}%)"


def jpeg(picture: Image.Image) -> bytes:
    """The picture as a file."""
    file = BytesIO()
    picture.save(file, "JPEG", quality=80)
    return file.getvalue()
