"""What the databases say each in its own way, for use in querysets."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper

from django_taskclaim.columns import claim_columns
from django_taskclaim.fields import MomentField


class SwitchIsOn(models.Expression):
    """True while nobody has paused one of the scopes, as the database sees it when the statement starts."""

    conditional = True

    def __init__(self, scopes: Sequence[str]) -> None:
        super().__init__(output_field=models.BooleanField())
        self.scopes = tuple(scopes)

    def as_sql(self, compiler: Any, connection: BaseDatabaseWrapper) -> tuple[str, list[Any]]:  # type: ignore[override]
        from django_taskclaim.db import dialect_for

        text, params = dialect_for(connection).switch_is_on(self.scopes)
        return text, list(params)


class KeyIn(models.Expression):
    """True for the rows of *owner* with these keys, composite or not, however many."""

    conditional = True

    def __init__(self, owner: type[models.Model], keys: Sequence[Any]) -> None:
        super().__init__(output_field=models.BooleanField())
        self.owner = owner
        self.keys = tuple(keys)

    def as_sql(self, compiler: Any, connection: BaseDatabaseWrapper) -> tuple[str, list[Any]]:  # type: ignore[override]
        from django_taskclaim.db import dialect_for

        text, params = dialect_for(connection).table(claim_columns(self.owner)).keyed(self.keys)
        return text, list(params)


class DatabaseNow(models.Expression):
    """The database's own clock, comparable with a ``MomentField``."""

    def __init__(self) -> None:
        super().__init__(output_field=MomentField())

    def as_sql(self, compiler: Any, connection: BaseDatabaseWrapper) -> tuple[str, list[Any]]:  # type: ignore[override]
        from django_taskclaim.db import dialect_for

        return dialect_for(connection).now, []


class DatabaseLater(models.Expression):
    """The moment a while from now by the database's own clock; a negative wait is a moment past."""

    def __init__(self, wait: timedelta) -> None:
        super().__init__(output_field=MomentField())
        self.wait = wait

    def as_sql(self, compiler: Any, connection: BaseDatabaseWrapper) -> tuple[str, list[Any]]:  # type: ignore[override]
        from django_taskclaim.db import dialect_for

        text, params = dialect_for(connection).later(self.wait)
        return text, list(params)
