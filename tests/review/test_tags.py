"""The template tags, and a lease that follows how long people take."""

from datetime import timedelta
from typing import Any

import pytest
from articles.models import Article
from django.contrib.auth.models import AnonymousUser
from django.template import Context, Template
from django.test import RequestFactory

from django_taskclaim.contrib.review.pace import ObservedLease
from tests.behaviour.support import clock, set_raw
from tests.review.conftest import Editor
from tests.testapp.models import ClaimOnly

pytestmark = pytest.mark.django_db

TAGS = Template(
    "{% load taskclaim %}{% who_holds row %}|{% time_left row %}|{% held_until_told row %}"
    "|{{ row|held_until|date:'Y' }}|{% when row|held_until %}"
)


def told(row: Any, user: Any, **more: Any) -> list[str]:
    request = RequestFactory().get("/")
    request.user = user
    return TAGS.render(Context({"row": row, "request": request})).split("|")


def test_who_until_when_and_how_long(ada: Editor, ben: Editor) -> None:
    (row,) = Article.objects.claim_batch(1, claimed_by=ada.who, lease=7200 + 30)
    who, left, until, year, when = told(row, ben.user)
    assert (who, left) == ("Ada Lovelace", "2 h")
    assert until.startswith("<time datetime=")
    assert when in until
    assert year.startswith("20")
    assert told(row, ada.user)[0] == "you"
    assert told(row, AnonymousUser())[0] == "Ada Lovelace"


def test_a_lapsed_row_and_one_that_nobody_holds(ada: Editor, articles: list[Article]) -> None:
    assert told(articles[0], ada.user) == ["", "", "", "", ""]
    (row,) = Article.objects.claim_batch(1, claimed_by=ada.who)
    set_raw(row, "expires_at", clock("-1 MINUTE"))
    assert told(Article.objects.get(pk=row.pk), ada.user)[1] == "no time"


def test_a_page_asks_for_the_clock_and_for_each_name_once(
    ada: Editor, ben: Editor, django_assert_num_queries: Any
) -> None:
    rows = Article.objects.claim_batch(4, claimed_by=ada.who)
    both = Template(
        "{% load taskclaim %}{% for row in rows %}{% who_holds row %}{% time_left row %}{% endfor %}"
    )
    request = RequestFactory().get("/")
    request.user = ben.user
    with django_assert_num_queries(2):
        both.render(Context({"rows": rows, "request": request}))


def test_a_lease_follows_the_working_time_within_bounds(
    ada: Editor, articles: list[Article]
) -> None:
    lease = ObservedLease(at_least=timedelta(minutes=5), at_most=timedelta(hours=2))
    assert lease(Article.objects.all()) == timedelta(hours=2)  # nobody knows yet
    Article.objects.bulk_create(Article(source=f"more {n}", title="", text="") for n in range(12))
    rows = Article.objects.claim_batch(20, claimed_by=ada.who)
    Article.objects.complete(rows)
    for minutes, row in enumerate(rows, 1):
        set_raw(row, "claimed_at", clock(f"-{minutes} MINUTE"))
    observed = ObservedLease(at_least=timedelta(minutes=5), at_most=timedelta(hours=2), share=0.5)
    assert abs(observed(Article.objects.all()) - timedelta(minutes=11)) < timedelta(seconds=30)
    short = ObservedLease(at_least=timedelta(minutes=30))
    assert short(Article.objects.all()) == timedelta(minutes=30)
    with pytest.raises(TypeError, match="completed_at"):
        ObservedLease()(ClaimOnly.objects.all())
    with pytest.raises(ValueError, match="at_least"):
        ObservedLease(share=0)
