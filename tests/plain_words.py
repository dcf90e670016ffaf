"""Find words that a reader whose second language is English may not know: `python -m tests.plain_words`.

The exit code is 1 if a file of the repository has one.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
WORDS = re.compile(r"\b(lest|whoever|whatever|anew|of ours|of yours|is told)\b", re.IGNORECASE)
FOLDERS = ("django_taskclaim", "tests", "example_project", "benchmarks", "docs")
TEXTS = {".py", ".md", ".html", ".css", ".js", ".txt", ".po", ".svg"}


def lines_with_such_words() -> Iterator[str]:
    """Yield each line with one, beside the place where it stands."""
    inside = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))
    for path in sorted([*ROOT.glob("*.md"), *inside]):
        if path.suffix in TEXTS and path != Path(__file__) and "_build" not in path.parts:
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if WORDS.search(line):
                    yield f"{path.relative_to(ROOT)}:{number}: {line.strip()}"


if __name__ == "__main__":
    found = list(lines_with_such_words())
    print(*found, sep="\n")
    sys.exit(1 if found else 0)
