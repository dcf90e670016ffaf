"""Who may look, act and configure: what is not granted is denied, with the control app and without it."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import AnonymousUser, User
from django.test import RequestFactory, override_settings

from django_taskclaim.admin.permissions import may_configure, may_operate, may_view
from tests.admin.conftest import permission
from tests.testapp.models import Photo, TextKey

pytestmark = pytest.mark.django_db

VIEW, CHANGE = "testapp.view_photo", "testapp.change_photo"
LOOK, OPERATE, CONFIGURE = (
    f"taskclaim_control.{codename}" for codename in ("view_control", "operate", "configure")
)


@pytest.fixture
def without_control() -> Iterator[None]:
    apps = [name for name in settings.INSTALLED_APPS if name != "django_taskclaim.control"]
    with override_settings(INSTALLED_APPS=apps):
        yield


def asking(*names: str, **facts: Any) -> Any:
    user = User.objects.create_user("ada", **{"is_staff": True, **facts})
    user.user_permissions.set([permission(name) for name in names])
    request = RequestFactory().get("/")
    request.user = user
    return request


def answers(request: Any, model: Any = Photo) -> tuple[bool, bool, bool]:
    return may_view(request, model), may_operate(request, model), may_configure(request, model)


@pytest.mark.parametrize(
    ("granted", "expected"),
    [
        ((), (False, False, False)),
        ((VIEW, CHANGE), (False, False, False)),
        ((LOOK, OPERATE, CONFIGURE), (False, False, False)),
        ((LOOK, VIEW), (True, False, False)),
        ((OPERATE, CHANGE), (False, True, False)),
        ((CONFIGURE, CHANGE), (False, False, True)),
        ((OPERATE, VIEW), (False, False, False)),
        ((LOOK, OPERATE, CONFIGURE, CHANGE), (True, True, True)),
    ],
)
def test_both_the_control_app_and_the_model_must_grant_it(
    granted: tuple[str, ...], expected: tuple[bool, bool, bool]
) -> None:
    assert answers(asking(*granted)) == expected


def test_what_is_granted_for_one_model_is_not_for_another() -> None:
    assert answers(asking(LOOK, OPERATE, CONFIGURE, CHANGE), TextKey) == (False, False, False)


def test_all_models_at_once_need_the_permission_alone() -> None:
    assert answers(asking(LOOK, OPERATE, CONFIGURE), None) == (True, True, True)


@pytest.mark.parametrize("facts", [{"is_staff": False}, {"is_active": False}])
def test_who_is_no_active_member_of_the_staff_may_nothing(facts: dict[str, Any]) -> None:
    assert answers(asking(is_superuser=True, **facts)) == (False, False, False)


def test_nobody_may_nothing() -> None:
    request = RequestFactory().get("/")
    assert answers(request) == (False, False, False)
    request.user = AnonymousUser()
    assert answers(request) == (False, False, False)


@pytest.mark.usefixtures("without_control")
@pytest.mark.parametrize(
    ("granted", "expected"),
    [
        ((), (False, False, False)),
        ((VIEW,), (True, False, False)),
        ((CHANGE,), (True, True, False)),
    ],
)
def test_without_the_control_app_the_models_own_permissions_decide(
    granted: tuple[str, ...], expected: tuple[bool, bool, bool]
) -> None:
    request = asking(*granted)
    assert answers(request) == expected
    assert answers(request, None) == (False, False, False)
