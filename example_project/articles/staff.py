"""Two editors who may log in, with their first names as names and passwords: the site listens on loopback alone."""

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group, Permission

from .models import Article

EDITORS = [("ada", "Ada", "Lovelace"), ("ben", "Ben", "Okri")]


def make_editors() -> list[str]:
    """Make the editors that are not there yet, and return the names of all."""
    group, _created = Group.objects.get_or_create(name="Editors")
    # The second is for who takes an article over from somebody who is away.
    names = (Article._meta.app_label, "change_article"), ("taskclaim_control", "operate")
    group.permissions.set(
        Permission.objects.get(content_type__app_label=app, codename=name) for app, name in names
    )
    for name, first, last in EDITORS:
        user, created = get_user_model()._default_manager.get_or_create(
            username=name, defaults={"first_name": first, "last_name": last}
        )
        if created:
            user.set_password(name)
            user.save()
        user.groups.add(group)
    return [name for name, _first, _last in EDITORS]
