"""`manage.py articles`: articles to review, and two editors."""

from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand

from articles.corpus import texts
from articles.models import Article
from articles.staff import make_editors


class Command(BaseCommand):
    """Make what is missing, and say how to begin."""

    help = "Make articles out of the reference that Python ships, and the editors ada and ben. Safe to repeat."

    def handle(self, **options: Any) -> None:
        """Articles that are there stay as they are."""
        call_command("migrate", verbosity=0)
        rows = [Article(source=one.source, title=one.title, text=one.text) for one in texts()]
        Article.objects.bulk_create(rows, ignore_conflicts=True)
        editors = make_editors()
        self.stdout.write(
            f"{Article.objects.count()} articles wait for {' and '.join(editors)}, whose passwords are their names.\n"
            "Start manage.py runserver, then open http://127.0.0.1:8000/articles/ in two browsers,"
            " or in a window and a private one."
        )
