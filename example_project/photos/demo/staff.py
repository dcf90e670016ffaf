"""Who may log in to the admin of the example: it listens on loopback alone and has nothing to keep secret."""

from django.contrib.auth import get_user_model

NAME = PASSWORD = "demo"


def make_superuser() -> None:
    """Make the user "demo" with the password "demo", unless there is one."""
    users = get_user_model()._default_manager
    if not users.filter(username=NAME).exists():
        users.create_superuser(username=NAME, password=PASSWORD)
