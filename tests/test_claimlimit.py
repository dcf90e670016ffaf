"""``claimlimit``, and where its limits are shown."""

from typing import Any

import pytest
from django.db import OperationalError

from django_taskclaim.control.models import OperatorAct
from django_taskclaim.limits import LimitsError, limits_of
from django_taskclaim.management.commands import claimlimit
from django_taskclaim.querysets import fleet
from tests.factories import make
from tests.test_commands import refused, run
from tests.testapp.models import Photo, UuidKey

pytestmark = pytest.mark.django_db(databases="__all__")


@pytest.fixture(autouse=True)
def _nothing_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "_stored", set())
    monkeypatch.setattr(fleet, "_asked", {})


def test_limits_are_set_shown_and_given_back() -> None:
    here = ["testapp.Photo", "--database", "default"]
    assert run("claimlimit", *here) == "testapp.Photo: no limits\n"
    words = ["--rate", "100/m", "--max-running", "20", "--hours", "22:00-06:00", "--by", "ada"]
    said = run("claimlimit", *here, *words)
    assert said.startswith("testapp.Photo: rate 100/m, 20 running at once, hours 22:00-06:00 ")
    assert said.endswith("(set by ada)\n")
    run("claimlimit", *here, "--rate", "none", "--hours", "default", "--by", "bob")
    (held,) = limits_of(Photo)
    assert (held.rate, held.max_running, held.hours, held.set_by) == (None, 20, None, "bob")
    assert run("claimlimit", *here, "--max-running", "default") == "testapp.Photo: no limits\n"


def test_every_database_and_every_model_named_is_limited() -> None:
    said = run("claimlimit", "testapp.Photo", "testapp.UuidKey", "--max-running", "2")
    assert said.splitlines()[0].startswith("testapp.Photo on default: 2 running at once")
    assert limits_of(Photo, using="other")[0].max_running == 2
    assert limits_of(UuidKey)[0].max_running == 2


def test_it_is_followed_at_once() -> None:
    make(Photo, 5)
    run("claimlimit", "testapp.Photo", "--max-running", "2")
    assert len(Photo.objects.claim_batch(5)) == 2


def test_it_is_an_act() -> None:
    run(
        "claimlimit", "testapp.Photo", "--rate", "5/s", "--reason", "the API is slow", "--by", "ada"
    )
    act = OperatorAct.objects.get()
    assert (act.model, act.act, act.by) == ("testapp.photo", "limits", "ada")
    assert act.reason == "rate 5/s: the API is slow"
    run("claimlimit", "testapp.Photo")
    assert OperatorAct.objects.count() == 1


def test_it_is_an_act_where_it_was_set_though_another_database_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def half(model: Any, **given: Any) -> list[str]:
        raise LimitsError({"default": OperationalError("away")}, ["other"])

    monkeypatch.setattr(claimlimit, "set_limits", half)
    code, said = refused("claimlimit", "testapp.Photo", "--rate", "5/s", "--by", "ada")
    assert (code, said) == (1, "The limits were set on other, but not on default: away")
    assert not OperatorAct.objects.exists()
    assert OperatorAct.objects.using("other").get().reason == "rate 5/s"


def test_claimstatus_shows_what_holds() -> None:
    run("claimlimit", "testapp.Photo", "--rate", "100/m", "--by", "ada")
    assert "  all together keep to: rate 100/m (set by ada)" in run("claimstatus", "testapp.Photo")
    assert "keep to" not in run("claimstatus", "testapp.UuidKey")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "Name the models."),
        (["testapp.Photo", "--rate", "fast"], "--rate: rate is a number of rows in a second"),
        (["testapp.Photo", "--max-running", "-1"], "--max-running: '-1' is no whole number from 1"),
        (["testapp.Photo", "--hours", "22-6"], "--hours: hours is a window such as 22:00-06:00"),
    ],
)
def test_a_wrong_limit_is_one_sentence(words: Any, sentence: str) -> None:
    code, said = refused("claimlimit", *words)
    assert code == 2
    assert said.startswith(sentence)
    assert "\n" not in said
