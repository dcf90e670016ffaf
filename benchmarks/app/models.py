"""Rows that cost nothing to do, under one name for each way to do them."""

from django.db import models

from django_taskclaim.models import TaskMixin


class Work(TaskMixin):
    """What is claimed."""

    payload = models.CharField(max_length=100, default="x" * 50)


class RowByRow(Work):
    """Completed by its handler, so each row by itself."""

    class Meta:
        proxy = True


class Atomic(Work):
    """Done and completed in one transaction for each row."""

    class Meta:
        proxy = True


class Batch(Work):
    """Done as a batch."""

    class Meta:
        proxy = True


class Async(Work):
    """Done by a coroutine."""

    class Meta:
        proxy = True
