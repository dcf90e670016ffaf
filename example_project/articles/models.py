"""An article that an editor reviews: the row is the work."""

from django.db import models

from django_taskclaim.models import TaskMixin


class Article(TaskMixin):
    """A text, and what an editor thinks of it."""

    class Verdict(models.TextChoices):
        """What becomes of it."""

        KEEP = "keep", "publish as it is"
        MEND = "mend", "publish with my changes"
        DROP = "drop", "leave it out"

    source = models.CharField(max_length=100, unique=True, editable=False)
    title = models.CharField(max_length=200)
    text = models.TextField()
    verdict = models.CharField(max_length=10, choices=Verdict.choices)
    remark = models.CharField(max_length=300, blank=True, default="")

    def __str__(self) -> str:
        return self.title
