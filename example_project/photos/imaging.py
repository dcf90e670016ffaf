"""What we want to know about a picture, computed from its bytes alone."""

import io
from dataclasses import dataclass
from itertools import pairwise

from PIL import Image

THUMBNAIL = (96, 96)


@dataclass(frozen=True, slots=True)
class Description:
    """The facts about one picture."""

    width: int
    height: int
    average_colour: str
    perceptual_hash: str
    thumbnail: bytes


def describe(data: bytes) -> Description:
    """Everything about the picture in `data`; Pillow's own errors where it is no picture."""
    with Image.open(io.BytesIO(data)) as source:
        picture = source.convert("RGB")
    return Description(
        width=picture.width,
        height=picture.height,
        average_colour=average_colour(picture),
        perceptual_hash=difference_hash(picture),
        thumbnail=thumbnail(picture),
    )


def average_colour(picture: Image.Image) -> str:
    """The mean of all pixels, as `#rrggbb`."""
    return "#" + picture.resize((1, 1), Image.Resampling.BOX).tobytes().hex()


def difference_hash(picture: Image.Image) -> str:
    """64 bits as 16 hexadecimal digits; pictures that look alike differ in few of them.

    One bit for each pair of neighbours in a grey 9 x 8 miniature: is the left one brighter?
    """
    grey = picture.convert("L").resize((9, 8), Image.Resampling.BOX).tobytes()
    rows = (grey[start : start + 9] for start in range(0, 72, 9))
    bits = (left > right for row in rows for left, right in pairwise(row))
    return f"{int(''.join('01'[bit] for bit in bits), 2):016x}"


def thumbnail(picture: Image.Image) -> bytes:
    """A small JPEG of the picture, its proportions kept."""
    small = picture.copy()
    small.thumbnail(THUMBNAIL, reducing_gap=2.0)
    target = io.BytesIO()
    small.save(target, "JPEG", quality=75)
    return target.getvalue()
