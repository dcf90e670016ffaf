"""The admin of claimable models: ``from django_taskclaim.admin import ClaimAdminMixin``, with the extra ``[admin]``.

Django imports this package in every project that has ``django.contrib.admin``, which puts the control room on its
default site.
"""

from django_taskclaim.admin.mixin import ClaimAdminMixin

__all__ = ["ClaimAdminMixin"]
