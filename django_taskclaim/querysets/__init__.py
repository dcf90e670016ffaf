"""The verbs: what users call on a manager or queryset. How each is carried out stands in the modules beside.

``claiming`` takes rows, ``fencing`` ends and extends claims, ``operating`` acts on many rows at once; the SQL is in
``django_taskclaim.dialects``.
"""

from django_taskclaim.querysets.claims import ClaimManager, ClaimQuerySet
from django_taskclaim.querysets.companions import CompanionManager, CompanionQuerySet
from django_taskclaim.querysets.progress import Progress

__all__ = ["ClaimManager", "ClaimQuerySet", "CompanionManager", "CompanionQuerySet", "Progress"]
