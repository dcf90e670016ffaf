"""What operators are told of ranges: the plan's progress, the strip, and what is wrong with a model."""

import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError
from django.db import models
from django.test import Client
from django.test.utils import isolate_apps
from django.urls import reverse

from django_taskclaim import handler
from django_taskclaim.checks.ranges import check_ranges, problems_of
from django_taskclaim.handlers import handler_for
from django_taskclaim.models import RangeMixin, TaskMixin
from django_taskclaim.ranges import strip
from tests.ranges.conftest import claimed, fill, work
from tests.test_commands import run
from tests.testapp.models import IntRange, IntSource

APP = "testapp"


@pytest.mark.django_db
def test_claimplan_says_how_much_it_planned() -> None:
    fill(IntRange, 25)
    assert "Planned 2 ranges of testapp.IntRange." in run(
        "claimplan", "testapp.IntRange", "--chunk-size", "10", "--limit", "2"
    )
    assert "Planned 1 range of" in run("claimplan", "testapp.IntRange", "--chunk-size", "10")
    assert "Planned 0 ranges of" in run("claimplan", "testapp.IntRange")


@pytest.mark.django_db
def test_claimplan_is_for_ranges_alone() -> None:
    with pytest.raises(CommandError, match=r"Photo are no ranges; it needs .*RangeMixin"):
        run("claimplan", "testapp.Photo")
    with pytest.raises(CommandError, match="whole number"):
        run("claimplan", "testapp.IntRange", "--chunk-size", "0")


@pytest.mark.django_db(databases="__all__")
def test_claimstatus_shows_a_strip_in_the_order_of_keys() -> None:
    fill(IntRange, 50)
    IntRange.objects.plan(chunk_size=10)
    done = claimed(IntRange)
    for rows in done.rows():
        work(rows)
    done.claim.complete()
    running, failing = claimed(IntRange), claimed(IntRange)
    failing.claim.fail("no", retry=False)
    assert IntRange.objects.split(at_least=1)
    next(walk := running.rows(2))
    next(walk)
    walk.close()
    shown = run("claimstatus", "testapp.IntRange")
    assert "12 rows done of about 50" in shown
    assert "[#>.x..]" in shown


@pytest.mark.django_db
def test_a_strip_is_as_wide_as_it_may_be() -> None:
    """Of many ranges one failed is seen."""
    assert strip(IntRange, "default").text == ""
    fill(IntRange, 40)
    IntRange.objects.plan(chunk_size=1)
    failing = IntRange.objects.claim_batch(3)[2]
    failing.claim.fail("no", retry=False)
    assert strip(IntRange, "default", width=10).text == "x........."


@pytest.mark.django_db(databases="__all__")
def test_the_control_room_shows_the_strip(settings: Any) -> None:
    settings.TASKCLAIM = {"PAGE_TIMEOUT": 60}
    fill(IntRange, 40)
    IntRange.objects.plan(chunk_size=10)
    (done,) = IntRange.objects.claim_batch(1)
    for rows in done.rows():
        work(rows)
    done.complete()
    claimed(IntRange)
    client = Client()
    client.force_login(User.objects.create_superuser("ada"))
    page = client.get(reverse("admin:testapp_intrange_control")).content.decode()
    assert "10 of about 40 rows of the source done" in page
    strip_ = re.search(r'<svg class="tc-bar tc-strip".*?</svg>', page, re.DOTALL)
    assert strip_
    parts = re.findall(r'x="([\d.]+)" width="([\d.]+)" height="24" class="tc-seg-(\w+)"', strip_[0])
    assert parts == [
        ("0.00", "250.00", "complete"),
        ("250.00", "250.00", "processing"),
        ("500.00", "500.00", "open"),
    ]
    assert (
        "tc-bar tc-strip" not in client.get(reverse("admin:testapp_job_control")).content.decode()
    )


# Checks


def ids(model: Any) -> list[str]:
    return [str(found.id).removeprefix("taskclaim.") for found in problems_of(model)]


def test_right_models_are_quiet() -> None:
    assert check_ranges() == []


@isolate_apps("tests.testapp")
def test_a_source_that_is_none() -> None:
    class Nameless(RangeMixin, TaskMixin):
        class Meta:
            app_label = APP

    class Unknown(RangeMixin, TaskMixin):
        source = "testapp.Nothing"

        class Meta:
            app_label = APP

    assert ids(Nameless) == ids(Unknown) == ["E071"]


@isolate_apps("tests.testapp")
def test_a_source_on_another_database(settings: Any) -> None:
    class Apart(RangeMixin, TaskMixin):
        source = IntSource

        class Meta:
            app_label = APP

    class Router:
        def db_for_write(self, model: type[models.Model], **hints: Any) -> str | None:
            return "other" if model is Apart else None

    settings.DATABASE_ROUTERS = [Router()]
    assert ids(Apart) == ["E072"]


@isolate_apps("tests.testapp")
def test_ranges_of_an_inherited_table() -> None:
    class Base(TaskMixin):
        class Meta:
            app_label = APP

    class Below(RangeMixin, Base):
        source = IntSource

        class Meta:
            app_label = APP

    assert "E073" in ids(Below)


def test_handlers_that_cannot_walk_a_range_are_refused() -> None:
    with pytest.raises(TypeError, match="must be a plain function of one range"):
        handler(IntRange, batch=True)(lambda ranges: None)
    with pytest.raises(TypeError, match=r"leave out atomic=True"):
        handler(IntRange, atomic=True)(lambda range_: None)
    with pytest.raises(TypeError, match="ranges that are done must stay"):
        handler(IntRange, completion="delete")(lambda range_: None)


def test_a_worker_takes_one_range_at_a_time() -> None:
    """A range that waits in one process could be worked on in another."""
    found = handler_for(IntRange)
    assert found is not None
    assert found.batch_size == 1
