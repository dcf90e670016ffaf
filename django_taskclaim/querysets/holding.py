"""Giving instances the claims that they are to carry."""

from typing import TypeVar

from django.db import models

from django_taskclaim.claim import Claim, attach
from django_taskclaim.columns import claim_columns
from django_taskclaim.policy import policy_for
from django_taskclaim.states import Token

M = TypeVar("M", bound=models.Model)


def carrying(row: M, token: Token, using: str) -> M:
    """Return *row*, carrying the claim that *token* names, whether that stands or not."""
    columns = claim_columns(type(row))
    attempts = getattr(row, (columns.attempts or columns.iteration).attname)
    lease = policy_for(type(row)).lease
    attach(row, Claim(token, using, columns.key_of(row), lease=lease, attempts=attempts))
    return row
