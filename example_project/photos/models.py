"""The one model of this app: a picture somewhere on the web, and what we know about it."""

from django.db import models

from django_taskclaim.models import TaskMixin


class Photo(TaskMixin):
    """A picture's URL; the other fields are NULL until a worker has described the picture."""

    url = models.URLField(max_length=500)
    width = models.IntegerField(null=True)
    height = models.IntegerField(null=True)
    average_colour = models.CharField(max_length=7, null=True)
    thumbnail = models.BinaryField(null=True)

    def __str__(self) -> str:
        return self.url.rpartition("/")[2]
