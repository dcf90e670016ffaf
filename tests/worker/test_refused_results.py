"""A result that the database refuses is the fault of its row, with any class of error."""

import random
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import pytest
from django.db import DatabaseError, connection

from tests.factories import make, make_claimed
from tests.querysets.refusing import SAID, refused
from tests.querysets.support import elsewhere, execute, value_of
from tests.testapp.models import Photo
from tests.worker.conftest import wait_until

pytestmark = pytest.mark.promise(10)

Work = Callable[..., int]
HOUR = 3600
#: An error that Django takes for one of the database's.
CODE = {"postgresql": "54000", "mysql": "1644", "sqlite": "1"}[connection.vendor]
#: What a server that may not write answers with; SQLite has none that a trigger could give.
READ_ONLY = {"postgresql": "25006", "mysql": "1290"}.get(connection.vendor)


def refused_when(condition: str, code: str = CODE) -> AbstractContextManager[None]:
    return refused(Photo, when=condition, code=code)


@contextmanager
def indexed() -> Iterator[None]:
    """No note is too long for the table, but for this index."""
    execute("CREATE INDEX refuses ON testapp_photo (note)")
    try:
        yield
    finally:
        execute("DROP INDEX refuses")


def too_much_for_a_packet() -> str:
    return "x" * (value_of("SELECT @@max_allowed_packet") + 1000)


def words(length: int) -> str:
    """Return text that no compression makes short, of words that occur once."""
    return " ".join(f"{random.Random(0).getrandbits(64):x}{n:x}" for n in range(length // 20))


#: What refuses, the value that is refused, and what the driver says of it.
REFUSALS: dict[str, dict[str, Any]] = {
    "postgresql": {"54000-index": (indexed, lambda: words(100_000), "index row")},
    "mysql": {
        "1644": (lambda: refused_when("NEW.note = 'no'"), lambda: "no", SAID),
        "1153": (nullcontext, too_much_for_a_packet, "1153|2006|2013"),
    },
    "sqlite": {"1": (lambda: refused_when("NEW.note = 'no'"), lambda: "no", "malformed JSON")},
}
OURS = REFUSALS[connection.vendor]


@pytest.mark.parametrize("code", OURS)
def test_the_row_whose_result_is_refused_fails_alone(work: Work, code: str) -> None:
    """Of 100 rows the database refuses one: 99 are complete, and that one failed with the driver's words."""
    refusal, value, said = OURS[code]
    given = value()
    with refusal():
        bad = make(Photo, 100, note='"plain"')[57].pk

        def do(photo: Photo) -> None:
            photo.note = given if photo.pk == bad else '"done"'

        work(Photo, do, update_fields=["note"], max_attempts=1, batch_size=100, lease=HOUR)
        others = Photo.objects.exclude(pk=bad)
        assert set(others.values_list("status", "note")) == {("complete", '"done"')}
        failed = Photo.objects.get(pk=bad)
        assert (failed.status, failed.attempts) == ("failed", 1)
        assert re.search(said, failed.last_error)


def test_a_failure_whose_text_is_refused_is_written_without_it(work: Work) -> None:
    with refused_when("NEW.last_error <> ''"):
        bad = make(Photo, 10)[3].pk

        def do(photo: Photo) -> None:
            if photo.pk == bad:
                raise ValueError("not this one")

        work(Photo, do, lease=HOUR, max_attempts=1)
    assert Photo.objects.progress().complete == 9
    photo = Photo.objects.get(pk=bad)
    assert (photo.status, photo.attempts, photo.last_error) == ("failed", 1, "")


@pytest.mark.promise(12)
@pytest.mark.skipif(READ_ONLY is None, reason="needs a server that can be made read-only")
def test_a_server_that_may_not_write_is_no_fault_of_the_rows(
    work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a failover: results are kept until it writes again, and nobody is charged."""
    ran: list[Any] = []
    refusal = ExitStack()

    def fail_over() -> None:
        wait_until(lambda: "claiming and writing" in caplog.text)
        refusal.close()

    make(Photo, 10)
    with refusal:
        refusal.enter_context(refused_when("NEW.status = 'complete'", READ_ONLY or ""))
        server = elsewhere(fail_over)
        work(Photo, lambda photo: ran.append(photo.pk), lease=HOUR)
        server.result(120)
    assert set(Photo.objects.values_list("status", "attempts", "iteration")) == {("complete", 0, 0)}
    assert len(ran) == 10


@pytest.mark.promise(3)
@pytest.mark.django_db(transaction=True)
def test_a_view_gets_the_error_and_nothing_is_half_written() -> None:
    """The session of the caller goes on."""
    with refused_when("NEW.note = 'no'"):
        rows = make_claimed(Photo, 9)
        session = connection.connection
        rows[4].note = "no"
        with pytest.raises(DatabaseError):
            Photo.objects.complete(rows, update_fields=["note"])
        assert connection.connection is session
    assert Photo.objects.progress().processing == 9
    rows[4].note = "yes"
    assert Photo.objects.complete(rows, update_fields=["note"]) == 9
