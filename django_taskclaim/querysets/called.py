"""For which tables idle workers want to be called: noted as handlers are registered, without what it takes to call."""

from django.db import models

#: The models that hold our columns and have a handler that wants to be called.
called_for: set[type[models.Model]] = set()
