"""The columns of ``ClaimMixin`` as migrations have them."""

from typing import Any

from django_taskclaim.models import ClaimMixin

CLAIM_COLUMNS: list[Any] = [(field.name, field.clone()) for field in ClaimMixin._meta.local_fields]
