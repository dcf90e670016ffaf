"""Fixtures of the behaviour suite."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.apps import apps
from django.db import connection
from django.test import override_settings

from django_taskclaim import limits
from django_taskclaim.policy import Policy, policies
from tests.factories import DIFFERENT
from tests.proxy import commits  # noqa: F401
from tests.querysets import models  # noqa: F401 - known before the databases are made
from tests.querysets.support import Rival
from tests.testapp.models import Child, ChildOwnsClaim, CompositeKey, Photo

pytest.register_assert_rewrite("tests.querysets.completing", "tests.querysets.late_writes")


def surrounded_models() -> list[Any]:
    """Return tables with partitions and row triggers, for which the whole suite is run by hand."""
    if not apps.is_installed("tests.surroundings.app"):
        return []
    from tests.surroundings.app.models import SURROUNDED

    return SURROUNDED


SURROUNDED = [pytest.param(model, marks=pytest.mark.long) for model in surrounded_models()]

#: Each way to claim that this database has, by CLAIM_STRATEGY.
STRATEGIES = ["auto", "update_limit"] if connection.vendor == "mysql" else ["auto"]


@pytest.fixture(params=[*DIFFERENT, *SURROUNDED], ids=lambda model: model.__name__[:20])
def shape(request: pytest.FixtureRequest) -> Any:
    """Each of the shapes that differ most."""
    return request.param


@pytest.fixture(params=STRATEGIES)
def strategy(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each way to claim that this database has."""
    with override_settings(TASKCLAIM={"CLAIM_STRATEGY": request.param}):
        yield request.param


#: The shapes that differ in how their claim table is reached, and two of them again under each other CLAIM_STRATEGY.
KINDS: list[Any] = [(model, "auto") for model in (Photo, Child, ChildOwnsClaim, CompositeKey)]
KINDS += [(model, strategy) for strategy in STRATEGIES[1:] for model in (Photo, Child)]


@pytest.fixture(params=KINDS, ids=lambda kind: f"{kind[0].__name__}-{kind[1]}")
def kind_of_table(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Each of ``KINDS``."""
    model, strategy = request.param
    with override_settings(TASKCLAIM={"CLAIM_STRATEGY": strategy}):
        yield model


@pytest.fixture
def rule() -> Iterator[Callable[..., None]]:
    """Give a model a policy for the length of a test: ``rule(Photo, max_attempts=2, completion=Delete())``."""
    ruled: list[Any] = []

    def give(model: Any, **fields: Any) -> None:
        ruled.append(model)
        following = {"lease", "max_attempts", "backoff"}
        named = {f"own_{name}" if name in following else name: fields[name] for name in fields}
        policies[model] = Policy(**named)

    yield give
    for model in ruled:
        policies.pop(model, None)


@pytest.fixture
def nothing_learned() -> None:
    """Begin each test as a process that has never heard of a stored limit."""
    limits.known.clear()


@pytest.fixture
def rival(transactional_db: None) -> Iterator[Rival]:
    """Another session on the same database."""
    session = Rival()
    yield session
    session.let_go()
    session.close()
