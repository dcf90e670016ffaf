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


class Wide(TaskMixin):
    """A table as applications have it: 20 columns and five indexes beside ours."""

    payload = models.CharField(max_length=100, default="x" * 50)
    for _number in range(1, 20):
        if _number % 2:
            locals()[f"text{_number}"] = models.CharField(max_length=40, default="x" * 24)
        else:
            locals()[f"number{_number}"] = models.IntegerField(default=_number)
    del _number

    class Meta:
        indexes = [
            models.Index(fields=["text1"], name="wide_text1"),
            models.Index(fields=["number2"], name="wide_number2"),
            models.Index(fields=["text3"], name="wide_text3"),
            models.Index(fields=["number4"], name="wide_number4"),
            models.Index(fields=["text5", "number6"], name="wide_text5_number6"),
        ]


class WideBatch(Wide):
    """Done as a batch."""

    class Meta:
        proxy = True


class WideResults(Wide):
    """Done with two results each."""

    class Meta:
        proxy = True


class Polled(TaskMixin):
    """Found by a worker that looks every second."""


class Called(TaskMixin):
    """Found by a worker that is called."""


class Listened(TaskMixin):
    """Found by a loop written by hand that listens."""

    payload = models.CharField(max_length=100, default="x" * 50)
