"""Rows that cost nothing to do, under one name for each way to do them."""

from django.db import models

from django_taskclaim.models import RangeMixin, SourceMixin, TaskMixin


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
    text1 = models.CharField(max_length=40, default="a text of some length")
    number2 = models.IntegerField(default=2)
    text3 = models.CharField(max_length=40, default="a text of some length")
    number4 = models.IntegerField(default=4)
    text5 = models.CharField(max_length=40, default="a text of some length")
    number6 = models.IntegerField(default=6)
    text7 = models.CharField(max_length=40, default="a text of some length")
    number8 = models.IntegerField(default=8)
    text9 = models.CharField(max_length=40, default="a text of some length")
    number10 = models.IntegerField(default=10)
    text11 = models.CharField(max_length=40, default="a text of some length")
    number12 = models.IntegerField(default=12)
    text13 = models.CharField(max_length=40, default="a text of some length")
    number14 = models.IntegerField(default=14)
    text15 = models.CharField(max_length=40, default="a text of some length")
    number16 = models.IntegerField(default=16)
    text17 = models.CharField(max_length=40, default="a text of some length")
    number18 = models.IntegerField(default=18)
    text19 = models.CharField(max_length=40, default="a text of some length")

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


class Polled(TaskMixin):
    """Found by a worker that looks every second."""


class Called(TaskMixin):
    """Found by a worker that is called."""


class Listened(TaskMixin):
    """Found by a loop written by hand that listens."""

    payload = models.CharField(max_length=100, default="x" * 50)


class Broad(models.Model):
    """Twenty columns and, with the key's, five indexes: what tables come to in a few years."""

    for _number in range(10):
        locals()[f"text_{_number}"] = models.CharField(max_length=40, db_index=_number < 2)
    for _number in range(9):
        locals()[f"number_{_number}"] = models.BigIntegerField(db_index=_number < 2)
    del _number

    class Meta:
        abstract = True


class Mixed(Broad, TaskMixin):
    """Claimed by columns of its own."""


class Plain(Broad):
    """Claimed by a table beside it."""


class PlainTask(SourceMixin, TaskMixin):
    """A row for each of its rows."""

    source = models.OneToOneField(Plain, models.DO_NOTHING, db_constraint=False)


class PlainRange(RangeMixin, TaskMixin):
    """A row for a thousand of its rows."""

    source = Plain
