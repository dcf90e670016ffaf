"""The index behind the claim. Users' migrations name this class, so its import path never changes."""

from typing import Any

from django.db import models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

from django_taskclaim.states import Status


class ClaimIndex(models.Index):
    """One index for every question about claims: state first, then the order in which open rows are claimed.

    It leaves out ``expires_at``, so a renewal touches no index. On PostgreSQL complete rows stay out of it,
    which keeps it small in a table of mostly finished work. The condition is added here and is no ``condition=``
    of Django's, which would demand a name in every model and warn on databases without partial indexes.
    """

    suffix = "clm"

    def _get_condition_sql(self, model: Any, schema_editor: BaseDatabaseSchemaEditor) -> str | None:
        if schema_editor.connection.vendor != "postgresql":
            return None
        state = schema_editor.quote_name(model._meta.get_field(self.fields[0]).column)
        return f"{state} <> '{Status.COMPLETE.value}'"
