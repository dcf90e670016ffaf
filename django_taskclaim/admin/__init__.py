"""The admin of claimable models: ``from django_taskclaim.admin import ClaimAdminMixin``, with the extra ``[admin]``.

Django imports this package in every project that has ``django.contrib.admin``, so it needs nothing of the extra until
somebody asks for the mixin.
"""

from typing import TYPE_CHECKING

from django_taskclaim.admin.control_room import mounting  # noqa: F401 - puts the overview on Django's default site

if TYPE_CHECKING:
    from django_taskclaim.admin.mixin import ClaimAdminMixin

__all__ = ["ClaimAdminMixin"]


def __getattr__(name: str) -> object:
    if name != "ClaimAdminMixin":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from django_taskclaim.admin.mixin import ClaimAdminMixin

    return ClaimAdminMixin
