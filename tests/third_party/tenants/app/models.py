from django.db import models

from django_taskclaim.models import TaskMixin


class Invoice(TaskMixin):
    total = models.IntegerField(default=0)
    schema = models.CharField(max_length=63, default="")
