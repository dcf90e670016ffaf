"""`manage.py articles`: articles to review, and two editors."""

import re
from pydoc_data.topics import topics
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand

from articles.models import Article
from articles.staff import make_editors

#: An editor reads texts of so many characters in a few minutes.
SHORTEST, LONGEST = 700, 6000


class Command(BaseCommand):
    """Make what is missing, and say how to begin."""

    help = "Make articles out of the reference that Python ships, and the editors ada and ben. Safe to repeat."

    def handle(self, **options: Any) -> None:
        """Articles that are there stay as they are."""
        call_command("migrate", verbosity=0)
        rows = [article(source, topic) for source, topic in topics.items()]
        fit = [row for row in rows if SHORTEST <= len(row.text) <= LONGEST]
        fit.sort(key=lambda row: row.title.lower())
        Article.objects.bulk_create(fit, ignore_conflicts=True)
        editors = " and ".join(make_editors())
        self.stdout.write(
            f"{Article.objects.count()} articles wait for {editors}, whose passwords are their names.\n"
            "Start manage.py runserver, then open http://127.0.0.1:8000/articles/ in two browsers,"
            " or in a window and a private one."
        )


def article(source: str, topic: str) -> Article:
    """A topic of ``help()``: its heading, which is underlined, and its text."""
    heading, _, text = topic.strip().partition("\n")
    text = re.sub(r"^[*=~-]{3,}\n", "", text, flags=re.M).strip()
    # Lines that were broken for a terminal, but neither code nor lists.
    text = re.sub(r"(?<=\w-)\n(?=\w)", "", text)
    text = re.sub(r"(?<=[^\s=~*-])\n(?=[^\s=~*-])", " ", text)
    return Article(source=source, title=heading.strip().replace('"', ""), text=text)
