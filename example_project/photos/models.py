"""The one model of the example: a picture somewhere on the web, and what we know about it."""

from django.db import models

from django_taskclaim.fields import PriorityField
from django_taskclaim.models import TaskMixin


class Photo(TaskMixin):
    """A picture's URL; the other fields are NULL until a worker has described the picture."""

    url = models.URLField(max_length=500)
    width = models.IntegerField(null=True)
    height = models.IntegerField(null=True)
    average_colour = models.CharField(max_length=7, null=True)
    perceptual_hash = models.CharField(max_length=16, null=True)
    thumbnail = models.BinaryField(null=True)
    # Declared again, so that the admin's form has it.
    priority = PriorityField(default=0, db_default=0)

    def __str__(self) -> str:
        return self.url
