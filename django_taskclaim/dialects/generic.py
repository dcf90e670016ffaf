"""Any other database that Django knows: compare-and-swap claims, Django's own idea of the clock.

Not tested on such a database; ``claimdoctor`` says so. Row locks are taken where Django says it can.
"""

import hashlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.db import IntegrityError, models, transaction
from django.db.models.functions import Now

from django_taskclaim.dialects.base import NAMED_LEASES, Dialect
from django_taskclaim.dialects.orders import ClaimOrder
from django_taskclaim.dialects.statements import SQL, Key, KeyTable, Table, sql, value
from django_taskclaim.fields import AnyField
from django_taskclaim.states import Token


class Generic(Dialect):
    """Correct by repeating every condition in the UPDATE and counting what it wrote."""

    now = "CURRENT_TIMESTAMP"

    def later(self, wait: timedelta) -> SQL:
        moment = models.ExpressionWrapper(
            Now() + models.Value(wait), output_field=models.DateTimeField()
        )
        query = models.sql.Query(None)
        text, params = query.get_compiler(connection=self.connection).compile(
            moment.resolve_expression(query)
        )
        return SQL(text, tuple(params))

    def claim_best(self, order: ClaimOrder, table: Table) -> list[list[Any]]:
        return self.claim_compare_and_swap(order, table)

    def lock_first(
        self, queryset: "models.QuerySet[Any]", table: Table, limit: int, fields: Sequence[AnyField]
    ) -> list[list[Any]]:
        return self.first(queryset, table, limit, fields)

    def lock_standing(
        self, table: Table, token: Token, keys: Sequence[Key], *, wait: bool = True
    ) -> list[Key]:
        return self.still_standing(table, token, keys)

    def lock_at_once(
        self, table: KeyTable, keys: Sequence[Key], fields: Sequence[AnyField]
    ) -> list[list[Any]]:
        return self.read(table, keys, fields)

    def queue(self, name: str) -> None:
        """Wait in line at a row of that name."""
        row = value(f"queue:{hashlib.sha256(name.encode()).hexdigest()}")
        wait = sql("UPDATE {} SET iteration = iteration WHERE name = {}", NAMED_LEASES, row)
        if not self.run(wait):
            new = sql("INSERT INTO {} (name, iteration) VALUES ({}, 0)", NAMED_LEASES, row)
            try:
                with transaction.atomic(using=self.connection.alias):
                    self.run(new)
            except IntegrityError:
                self.run(wait)

    def lock_keyed(self, table: KeyTable, keys: Sequence[Key]) -> set[Key]:
        return self.present(table, keys)

    def update_held(
        self, table: Table, token: Token, keys: Sequence[Key], assignments: Sequence[SQL]
    ) -> list[Key]:
        """Write row by row, because only the count says which ones were written."""
        standing = table.standing(token)
        return [key for key in keys if self.update_where(table, [key], standing, assignments)]

    def update_together(
        self,
        table: Table,
        claims: Sequence[tuple[Token, Sequence[Key]]],
        assignments: Sequence[SQL],
    ) -> list[Key] | None:
        return [
            key
            for token, keys in claims
            for key in self.update_held(table, token, keys, assignments)
        ]

    def delete_held(self, table: Table, token: Token, keys: Sequence[Key]) -> list[Key]:
        standing = table.standing(token)
        return [
            key
            for key in keys
            if self.delete_where(table.name, sql("{} AND {}", table.keyed([key]), standing))
        ]
