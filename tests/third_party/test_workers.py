"""One worker, a process of its own, over a row of every package; the checks find nothing wrong with any model."""

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth import authenticate
from django.core.checks import run_checks
from django.core.management import call_command
from wagtail.models import Locale, Page

from tests.third_party.app import models
from tests.third_party.test_trees import KINDS_OF_TREES, add, whole


@pytest.mark.django_db(databases="__all__")
def test_no_check_of_ours_complains() -> None:
    assert [found for found in run_checks() if (found.id or "").startswith("taskclaim")] == []


@pytest.mark.django_db(transaction=True)
def test_a_worker_does_the_rows_of_every_package(work: Callable[..., str]) -> None:
    Locale.objects.get_or_create(language_code="en")
    root = Page.add_root(title="Root", slug="root")
    root.add_child(
        instance=models.ArticlePage(title="One", body="one two")
    ).save_revision().publish()
    root.add_child(instance=models.ReportPage(title="Two", body="one two three"))
    for tree in KINDS_OF_TREES:
        add(tree, "B", add(tree, "A"))
    models.Letter.objects.create(text="one two")
    models.Invoice.objects.create(text="1 2")
    models.Order.objects.create(text="3 4")
    models.Asset.objects.create(name="a")
    models.Film.objects.create(name="b")
    call_command("createsuperuser", username="zoe", email="z@example.com", interactive=False)
    zoe = models.Member.objects.get()
    zoe.set_password("secret")
    zoe.save()
    assert authenticate(username="zoe", password="secret") == zoe

    done: dict[Any, tuple[str, list[Any]]] = {
        models.ArticlePage: ("words", [2]),
        models.ReportPage: ("words", [3]),
        models.Letter: ("words", [2]),
        models.Invoice: ("total", [3]),
        models.Order: ("total", [7]),
        models.Asset: ("summary", ["Asset of 0 min", "Film of 90 min"]),
        models.Member: ("first_name", ["Zoe"]),
        **{tree: ("slug", ["a", "b"]) for tree in KINDS_OF_TREES},
    }
    work(*done)
    for model, (name, values) in done.items():
        rows = model.objects.order_by("pk")
        assert [getattr(row, name) for row in rows] == values, model
        assert model.objects.progress().complete == len(values)
    for tree in KINDS_OF_TREES:
        assert whole(tree) == ["A", "B"]
