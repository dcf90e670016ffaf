"""Claims among rows that cannot be read, or that the database lets nobody write: the other rows go on."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from django.db import DatabaseError, models

from django_taskclaim.claim import Claim, claims_of
from django_taskclaim.db import ClaimedRow
from django_taskclaim.querysets.claiming import ClaimCall
from django_taskclaim.querysets.cursor import Scan
from django_taskclaim.querysets.failing import release
from django_taskclaim.querysets.instances import bare, like
from django_taskclaim.querysets.refusals import Search, may_be_refused
from django_taskclaim.querysets.transactions import belongs_to_the_caller
from django_taskclaim.querysets.unreadable import (
    fail_unreadable,
    isolate_unreadable,
    may_be_of_a_row,
)

#: How many rows are looked at for each one wanted, while some refuse to be claimed; others may have locked them.
LOOK_AHEAD = 4


def claim_around(one: ClaimCall, error: Exception) -> list[Any]:
    """Claim again after *error*, without the rows that it may come from; raise it where it is not of rows."""
    try:
        return _claim_around(one, error)
    except BaseException:
        _give_back(one)
        raise


def _claim_around(one: ClaimCall, error: Exception) -> list[Any]:
    if one.request.durable and belongs_to_the_caller(one.target.dialect.connection):
        raise error
    if not may_be_of_a_row(error, one.target.alias) and not may_be_refused(error, one.target):
        raise error
    # With our columns first, so that rows which cannot be read keep nobody from the others.
    again = _IsolatingCall(one)
    try:
        rows = again.run()
    except DatabaseError as refused:
        again.search = Search(one.target, refused)
        rows = again.run()
    fail_unreadable(again.unreadable.values())
    return rows


def _give_back(one: ClaimCall) -> None:
    """Give rows back that are committed and that the caller will not get, for the call ends in an error."""
    if one.committed:
        request, alias = one.request, one.target.alias
        claims = claims_of(one.committed, request.holder, alias, request.lease, one.started)
        # If this fails, too, they return with the end of their lease.
        with suppress(Exception):
            release([bare(one.queryset.model, claim) for claim in claims], None)


class _IsolatingCall(ClaimCall):
    """Claims once more, in a transaction: reads rows apart, and claims them part by part where some are refused."""

    #: Claims part by part, because the database refuses to have some rows written; None where it does not.
    search: Search | None = None

    def __init__(self, one: ClaimCall) -> None:
        super().__init__(one.queryset, one.target, one.request, is_limited=one.is_limited)
        self.started = one.started
        self.committed = one.committed
        if one.autocommits:
            # A statement may have committed rows that could not be read.
            self.committed += self.claimed()
        #: The rows claimed that cannot be read, by key, each with the error.
        self.unreadable: dict[Any, tuple[models.Model, Exception]] = {}

    def claim_in_transaction(self) -> list[Any]:
        self.unreadable.clear()
        rows = super().claim_in_transaction()
        if self.search is not None:
            self.search.end(rows)
        return rows

    def send_parts(
        self, parts: Iterable[Sequence[Any]], send: Callable[[Any], Any]
    ) -> Iterable[Any]:
        sent = super().send_parts if self.search is None else self.search.send
        return sent(parts, send)

    def claim_from(self, scan: Scan, limit: int) -> list[ClaimedRow]:
        """Claim the first rows by their keys, each part as a claim of its own, without those that are refused."""
        if self.search is None:
            return super().claim_from(scan, limit)
        target, most = self.target, LOOK_AHEAD * limit
        rows = self.rows(scan)
        found = target.dialect.first(rows, target.table, most, target.columns.key)
        keys = list(dict.fromkeys(target.table.keys_of(found)))
        claimed: list[ClaimedRow] = []

        def take(part: Sequence[Any]) -> list[ClaimedRow]:
            part_of = self.queryset.filter(pk__in=part)
            call = ClaimCall(part_of, target, self.request, is_limited=self.is_limited)
            call.known = {row.key for row in claimed}.union(self.known)
            return call.claim_from(scan, limit - len(claimed))

        parts = (keys[start : start + limit] for start in range(0, len(keys), limit))
        for rows_of_part in self.search.send(parts, take):
            claimed += rows_of_part
            if len(claimed) >= limit:
                break
        return claimed

    def read(self, claims: dict[Any, Claim]) -> list[Any]:
        """Read the rows with these keys; those that cannot be read are noted instead."""

        def read(keys: Sequence[Any]) -> list[Any]:
            return super(_IsolatingCall, self).read({key: claims[key] for key in keys})

        for key, error in isolate_unreadable([*claims], read, like(self.queryset, self.target)):
            self.unreadable[key] = bare(self.queryset.model, claims[key]), error
        return read([key for key in claims if key not in self.unreadable])
