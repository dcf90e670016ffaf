"""A worker judges what a handler raised as ``fail()`` would."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError, InterfaceError, OperationalError, connection, transaction

from django_taskclaim import Retry
from django_taskclaim.dialects import dialect_for
from django_taskclaim.exceptions import Permanent, RetryLater
from django_taskclaim.handlers import Handler
from django_taskclaim.policy import Policy, forget_policy, set_policy
from django_taskclaim.worker.inflight import InFlight, Task
from django_taskclaim.worker.outcomes import Answer, Failed, PutBack
from django_taskclaim.worker.running import Running
from tests.factories import make
from tests.testapp.models import Photo

pytestmark = pytest.mark.django_db


@pytest.fixture
def rules() -> Iterator[None]:
    errors = {
        TimeoutError: RetryLater(60),
        LookupError: Permanent,
        OSError: Retry(max_attempts=20),
    }
    set_policy(Photo, Policy(own_errors=errors))
    yield
    forget_policy(Photo)


def outcomes(error: BaseException, rows: int = 1) -> Any:
    """Return what a call that raised *error* makes of its rows; None for "run it in halves"."""
    make(Photo, rows)
    running: Any = Running("default", InFlight(), None, timedelta())  # type: ignore[arg-type]
    handler = Handler(Photo, print)
    tasks = [Task(row, handler) for row in Photo.objects.claim_batch(rows)]
    return running._outcomes(tasks, Answer(error=error), 0.0)


@pytest.mark.usefixtures("rules")
def test_an_error_put_off_by_the_policy_gives_the_row_back() -> None:
    assert outcomes(TimeoutError("busy")) == [PutBack("TimeoutError: busy", timedelta(seconds=60))]
    assert outcomes(RetryLater(5, "busy"))[0].delay == timedelta(seconds=5)


@pytest.mark.usefixtures("rules")
@pytest.mark.parametrize("error", [KeyError("x"), ConnectionError("x"), ValueError("x")])
def test_any_other_error_fails_the_row(error: Exception) -> None:
    """How often it is tried again, ``fail()`` asks the same policy."""
    assert outcomes(error) == [Failed(error)]


@pytest.mark.usefixtures("rules")
def test_a_batch_that_is_put_off_is_not_run_in_halves() -> None:
    assert [type(one) for one in outcomes(TimeoutError("busy"), rows=4)] == [PutBack] * 4
    assert outcomes(ValueError("which?"), rows=4) is None


@pytest.mark.parametrize(
    "statement",
    ["SELECT missing FROM testapp_photo", "SELECT 1 FROM missing", "SELECT FROM FROM"],
)
def test_the_answer_to_a_wrong_statement_fails_the_row_without_waiting_for_news_of_the_database(
    statement: str,
) -> None:
    """Nobody is there to be asked: the service that would tell of an outage is None."""
    with pytest.raises(DatabaseError) as raised, transaction.atomic():
        connection.cursor().execute(statement)
    assert outcomes(raised.value) == [Failed(raised.value)]


@pytest.mark.parametrize("error", [OperationalError("x"), InterfaceError("x")])
def test_without_a_server_no_error_is_an_outage(error: Exception) -> None:
    """Each would cost a second, in which the service asks whether the server is there."""
    if dialect_for(connection).has_server:
        pytest.skip("a server may have been away")
    assert outcomes(error) == [Failed(error)]
