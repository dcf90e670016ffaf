"""The settings of throttling: what may stand there, and what the system checks say of the rest."""

import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from django_taskclaim.checks.settings import check_settings
from django_taskclaim.checks.throttling import check_health_answers, check_health_checks
from django_taskclaim.handlers import handler, unregister
from django_taskclaim.throttling import LongTransactions, ReplicaLag, Sql, Surroundings, ok, stop
from django_taskclaim.throttling.answers import understood
from django_taskclaim.throttling.configured import health_checks, name_of
from tests.testapp.models import Photo

HERE = f"{__name__}.well"


def well(where: Surroundings) -> None:
    """A check named by its path."""


class Well(LongTransactions):
    """A check whose class is named, not an instance."""


def test_an_entry_may_be_a_check_a_class_or_a_path_to_either(settings: Any) -> None:
    check = Sql("SELECT 1", at_most=1)
    settings.TASKCLAIM = {"HEALTH_CHECKS": [check, well, HERE, Well, f"{__name__}.Well"]}
    first, second, third, fourth, fifth = health_checks()
    assert first is check
    assert second is third is well
    assert isinstance(fourth, Well)
    assert isinstance(fifth, Well)
    assert check_settings() == []
    assert [name_of(one) for one in (first, second)] == ["SELECT 1", "well"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"HEALTH_CHECKS": "path"},
        {"HEALTH_CHECKS": [42]},
        {"HEALTH_EVERY": 0},
        {"BREAKER": True},
        {"BREAKER": {"rate": 1.5}},
        {"BREAKER": {"rate": 0}},
        {"BREAKER": {"outcomes": 0}},
        {"BREAKER": {"rest": -1}},
        {"BREAKER": {"ratio": 0.5}},
    ],
    ids=str,
)
def test_a_wrong_setting_is_shown_with_its_value(wrong: dict[str, Any], settings: Any) -> None:
    settings.TASKCLAIM = wrong
    (message,) = check_settings()
    assert message.id == "taskclaim.E001"
    assert repr(next(iter(wrong.values()))) in message.msg


@pytest.mark.parametrize("right", [None, {}, {"rate": 1}, {"within": timedelta(minutes=5)}])
def test_a_right_breaker_is_accepted(right: Any, settings: Any) -> None:
    settings.TASKCLAIM = {"BREAKER": right}
    assert check_settings() == []


@pytest.mark.parametrize("entry", ["nowhere.at_all", "django.VERSION", f"{__name__}.nothing"])
def test_an_entry_that_leads_nowhere_is_named(settings: Any, entry: str) -> None:
    settings.TASKCLAIM = {"HEALTH_CHECKS": [entry]}
    (message,) = check_health_checks()
    assert message.id == "taskclaim.E031"
    assert repr(entry) in message.msg
    assert message.hint


def test_a_check_that_no_database_of_the_kind_answers_is_named(settings: Any) -> None:
    settings.TASKCLAIM = {"HEALTH_CHECKS": [ReplicaLag()]}
    found = check_health_checks()
    if connection.vendor == "postgresql":
        assert found == []
        return
    (message,) = found
    assert message.id == "taskclaim.E032"
    assert "(database 'default') cannot answer replicas()" in message.msg


@pytest.mark.skipif(connection.vendor == "sqlite", reason="needs a server")
@pytest.mark.django_db(databases="__all__")
def test_a_server_that_does_not_answer_is_named_when_it_is_asked(settings: Any) -> None:
    settings.TASKCLAIM = {"HEALTH_CHECKS": [ReplicaLag(using="other")]}
    assert check_health_checks() == []
    assert check_health_answers(databases=["other"]) == []
    (message,) = check_health_answers(databases=["default", "other"])
    assert message.id == "taskclaim.E131"
    assert message.msg.startswith("The database 'other' is no replica")


def test_a_handlers_own_checks_are_looked_at_as_well() -> None:
    unregister(Photo)
    handler(Photo, health_checks=[ReplicaLag(using="nowhere"), "nowhere.at_all"])(len)
    try:
        found = check_health_checks()
    finally:
        unregister(Photo)
    assert [message.id for message in found] == ["taskclaim.E031", "taskclaim.E032"]
    assert "'nowhere.at_all'" in found[0].msg
    assert "replica lag of nowhere" in found[1].msg


@pytest.mark.parametrize("wrong", ["nowhere.at_all", LongTransactions()])
def test_a_handler_takes_a_list_of_checks(wrong: Any) -> None:
    with pytest.raises(TypeError, match="health_checks is a list of checks"):
        handler(Photo, health_checks=wrong)


def test_an_alias_that_does_not_exist_is_named(settings: Any) -> None:
    settings.TASKCLAIM = {"HEALTH_CHECKS": [ReplicaLag(using="nowhere")]}
    (message,) = check_health_checks()
    assert "'nowhere'" in message.msg


def test_the_checks_can_be_named_in_the_settings_module(tmp_path: Path) -> None:
    """Importing them there loads no model and asks for no setting."""
    (tmp_path / "odd_settings.py").write_text(
        "from django_taskclaim.throttling import *\n"
        'SECRET_KEY = "x"\n'
        'INSTALLED_APPS = ["django_taskclaim"]\n'
        "TASKCLAIM = {'HEALTH_CHECKS': [ReplicaLag(), LongTransactions(at_most=5)]}\n"
        "DATABASES = {'default': {'ENGINE': 'django.db.backends.sqlite3', 'NAME': ':memory:'}}\n"
    )
    ran = subprocess.run(
        [sys.executable, "-m", "django", "check", "--settings", "odd_settings"],
        cwd=tmp_path,
        env={"PYTHONPATH": ":".join([str(tmp_path), *filter(None, sys.path)]), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


def test_what_a_check_may_answer() -> None:
    assert understood(stop("why", lasting=5)).lasting == timedelta(seconds=5)
    assert understood(ok()).reason is None
    for nonsense in ("", 0, 1, object()):
        with pytest.raises((TypeError, ValueError)):
            understood(nonsense)
    with pytest.raises(ValueError, match="A stop needs a reason"):
        stop("")
    with pytest.raises(ValueError, match="lasting must be longer than zero"):
        stop("why", lasting=0)
