"""Tables without claim columns; imported while tests are collected, they are known before the databases are made."""

from django.db import models


class Writer(models.Model):
    name = models.CharField(max_length=20)

    class Meta:
        app_label = "testapp"


class Letter(models.Model):
    """What an outbox holds."""

    text = models.CharField(max_length=50, default="")
    sent = models.BooleanField(default=False)
    tries = models.IntegerField(default=0)
    writer = models.ForeignKey(Writer, on_delete=models.CASCADE, null=True)

    class Meta:
        app_label = "testapp"
        ordering = ["-id"]


class Postmark(models.Model):
    """Refers to a letter, which Django's cascade would take with it."""

    letter = models.ForeignKey(Letter, on_delete=models.CASCADE)

    class Meta:
        app_label = "testapp"


class Line(models.Model):
    """A log that is not Django's: a sequence, and no key of the table's own."""

    seq = models.BigIntegerField(primary_key=True)
    text = models.CharField(max_length=50)

    class Meta:
        app_label = "testapp"
        managed = False
        db_table = "taking_line"
