"""What a project must have for the buttons to be seen, and what a ModelAdmin with claims cannot have."""

from collections.abc import Iterator
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage

from django_taskclaim.admin.fieldsets import raw_names
from django_taskclaim.checks.messages import message
from django_taskclaim.columns import has_claim_columns
from django_taskclaim.formatting import listed


def problems(admin: object) -> list[CheckMessage]:
    """Return what keeps a ModelAdmin with ``ClaimAdminMixin`` from working."""
    return [*_unseen_buttons(admin), *_edited_claims(admin)]


def _unseen_buttons(admin: object) -> Iterator[CheckMessage]:
    """E021 and W021: the buttons are drawn by templates of ``admin_actions``, found before those of Django's admin."""
    names = [config.name for config in apps.get_app_configs()]
    hint = "Add 'admin_actions' to INSTALLED_APPS, before 'django.contrib.admin'."
    if "admin_actions" not in names:
        text = (
            "ClaimAdminMixin draws its buttons by the app 'admin_actions', which is not installed."
        )
        yield message("E021", text, hint, admin.__class__)
    elif "django.contrib.admin" in names and names.index("admin_actions") > names.index(
        "django.contrib.admin"
    ):
        text = (
            "The app 'admin_actions' comes after 'django.contrib.admin', so buttons are not seen."
        )
        yield message("W021", text, hint, admin.__class__)


def _edited_claims(admin: Any) -> Iterator[CheckMessage]:
    """E022: verbs alone write the claim columns, so a list that edits one could be neither shown nor saved."""
    # Django's own check says what is no list of names.
    edited = admin.list_editable if isinstance(admin.list_editable, (list, tuple)) else ()
    try:
        raw = raw_names(admin.model)
    except TypeError as error:
        # Where the model has claim columns that are wrong, its own checks report it.
        if not has_claim_columns(admin.model):
            hint = "Use ClaimAdminMixin for claimable models only."
            yield message("E022", str(error), hint, admin.__class__)
        return
    ours = [name for name in edited if name in raw]
    if ours:
        rest = [name for name in edited if name not in raw]
        yield message(
            "E022",
            f"{type(admin).__name__}.list_editable = {list(edited)!r} names {listed(ours)}, which verbs alone write.",
            f"list_editable = {rest!r}; the actions and buttons of ClaimAdminMixin change the state of rows.",
            admin.__class__,
        )
