"""Two editors who may log in, with their first names as names and passwords: the site listens on loopback alone."""

from django.contrib.auth.models import Group, Permission, User

from .models import Article

EDITORS = [("ada", "Ada", "Lovelace"), ("ben", "Ben", "Okri")]


def make_editors() -> list[str]:
    """Make the editors that are not there yet, and return the names of all."""
    group, _created = Group.objects.get_or_create(name="Editors")
    app = Article._meta.app_label
    group.permissions.set(
        Permission.objects.filter(content_type__app_label=app, codename="change_article")
    )
    for name, first, last in EDITORS:
        if not User.objects.filter(username=name).exists():
            User.objects.create_user(name, password=name, first_name=first, last_name=last)
        group.user_set.add(User.objects.get(username=name))
    return [name for name, _first, _last in EDITORS]
