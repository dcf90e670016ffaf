"""The page "my work" in Django's admin."""

from typing import Any

import pytest
from articles.models import Article
from django.contrib.auth.models import Permission
from django.test import Client
from django.urls import reverse

from tests.behaviour.support import facts
from tests.review.conftest import Editor

pytestmark = pytest.mark.django_db

PAGE = "/admin/articles/article/claim/my-work/"


@pytest.fixture
def staff(ada: Editor) -> Editor:
    """Ada, who may come to the admin."""
    ada.user.is_staff = True
    ada.user.save()
    names = ["view_article", "change_article"]
    ada.user.user_permissions.set(Permission.objects.filter(codename__in=names))
    return ada


def claims(answer: Any) -> list[str]:
    return [line["claim"] for line in answer.context["lines"]]


def test_a_look_claims_nothing_and_a_button_takes_five(staff: Editor) -> None:
    assert "My work" in staff.look(reverse("admin:articles_article_changelist")).content.decode()
    assert claims(staff.look(PAGE)) == []
    taken = claims(staff.send(PAGE, act="more"))
    assert len(taken) == 5
    assert claims(staff.look(PAGE)) == taken


def test_what_is_ticked_is_completed_or_given_back_and_what_is_lost_left_alone(
    staff: Editor,
) -> None:
    staff.look(PAGE)
    done, lost, back, *_ = claims(staff.send(PAGE, act="more"))
    pk = lost.split("\n")[0]
    Article.objects.filter(pk=pk).take_over(by="user:0", reason="test")
    page = staff.send(PAGE, act="complete", claim=[done, lost, "x\ny", f"{pk}\n1:user:0"])
    assert "1 row was completed. 3 were not yours" in page.content.decode()
    assert len(claims(staff.send(PAGE, act="release", claim=back))) == 2
    assert facts(Article.objects.get(pk=pk)).claimed_by == "user:0"
    assert Article.objects.progress().complete == 1


def test_who_may_not_change_rows_has_no_such_page(staff: Editor) -> None:
    staff.user.user_permissions.set(Permission.objects.filter(codename="view_article"))
    staff.user.groups.clear()
    assert staff.look(PAGE).status_code == 403
    assert Client().get(PAGE).status_code == 302
