"""The verbs: what users call on a manager or queryset. How each is carried out stands in the modules beside.

``claiming`` takes rows, ``writes`` ends and extends claims, ``operating`` acts on many rows at once; the
SQL is in ``django_taskclaim.db``.
"""

from django_taskclaim.querysets.manager import ClaimManager, ClaimQuerySet
from django_taskclaim.querysets.why_empty import Progress

__all__ = ["ClaimManager", "ClaimQuerySet", "Progress"]
