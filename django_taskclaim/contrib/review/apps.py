"""The Django app of the pages for people."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class ReviewConfig(AppConfig):
    """``django_taskclaim.contrib.review`` in INSTALLED_APPS; it has no tables."""

    name = "django_taskclaim.contrib.review"
    label = "taskclaim_review"
    verbose_name = _("Review")
