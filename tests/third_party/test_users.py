"""A custom user model whose rows are claimed."""

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth import authenticate
from django.core.management import call_command

from tests.third_party.app.models import Member

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_superuser_is_made_logs_in_and_is_worked_on(work: Callable[[Any], str]) -> None:
    call_command("createsuperuser", username="zoe", email="z@example.com", interactive=False)
    zoe = Member.objects.get()
    zoe.set_password("secret")
    zoe.save()
    assert authenticate(username="zoe", password="secret") == zoe
    work(Member)
    zoe.refresh_from_db()
    assert (zoe.first_name, zoe.status) == ("Zoe", "complete")
