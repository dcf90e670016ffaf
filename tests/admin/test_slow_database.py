"""A slow, hanging or refusing database: the page shows what is known and says what is not, never an error."""

from typing import Any

import pytest
from django.db import connection
from django.test import Client, override_settings

from django_taskclaim.switch import pause, paused_by
from tests.admin.room import command_url, failed, group_of, overview, photos, said, text_of, worker
from tests.commands import nobody_answers, table_away
from tests.factories import make
from tests.meanwhile import column_away
from tests.querysets.support import execute, held_open
from tests.testapp.models import ClaimOnly, Photo

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])

impatient = override_settings(TASKCLAIM={"PAGE_TIMEOUT": 0.000001})


def test_what_was_never_known_is_shown_as_unknown_and_not_as_none(boss: Client) -> None:
    failed(2)
    worker()
    with impatient:
        pages = [boss.get(where) for where in (photos(), photos("live"), overview())]
    assert [page.status_code for page in pages] == [200, 200, 200]
    page = text_of(pages[0])
    assert "UNKNOWN" in page
    assert "The database has not answered in time yet." in page
    for untrue in ("No row has failed.", "Nothing yet.", "None. Start one"):
        assert untrue not in page


def test_a_retry_while_the_database_does_not_answer_changes_nothing(boss: Client) -> None:
    failed(2)
    where = photos("retry", group=group_of(boss))
    with impatient:
        answer = boss.post(where, {"reason": ""})
    assert answer.status_code == 302
    assert "did not answer in time" in said(answer)
    assert Photo.objects.failed().count() == 2


@pytest.mark.skipif(
    connection.vendor != "postgresql", reason="needs table locks that readers wait for"
)
def test_a_table_that_hangs_costs_the_page_only_what_it_would_tell(boss: Client) -> None:
    make(Photo, 3)
    lock = lambda: execute("LOCK TABLE testapp_photo IN ACCESS EXCLUSIVE MODE")  # noqa: E731
    with held_open(lock), override_settings(TASKCLAIM={"PAGE_TIMEOUT": 0.4}):
        answer = boss.get(photos())
    assert answer.status_code == 200
    assert "some figures are older or missing" in text_of(answer)
    assert "some figures" not in text_of(boss.get(photos()))


@pytest.mark.parametrize("away", [table_away, lambda model: column_away(model, "status")])
def test_a_model_without_its_table_says_so_and_hides_no_other(boss: Client, away: Any) -> None:
    with away(ClaimOnly):
        pages = [text_of(boss.get(where)) for where in (overview(), overview("testapp.claimonly"))]
    assert [page.count("UNKNOWN") for page in pages] == [1, 1]
    for page in pages:
        assert "The table testapp_claimonly on " in page
        assert "has not answered in time" not in page


class _PhotosElsewhere:
    """Keeps photos on "other"."""

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return "other" if model is Photo else None


def test_a_resume_asks_and_says_where_a_database_did_not_answer(boss: Client) -> None:
    """It is done on the others."""
    pause(Photo)
    with override_settings(DATABASE_ROUTERS=[_PhotosElsewhere()]), nobody_answers("other"):
        asked = boss.get(photos("resume"))
        done = boss.post(photos("resume"), {"reason": ""})
        for answer in (boss.get(command_url("drain")), boss.post(command_url("drain"))):
            assert "The database did not answer in time." in said(answer)
    assert (asked.status_code, done.status_code) == (200, 302)
    assert "The switch was set on default, but not on other" in said(done)
    assert paused_by(Photo, using="default") is None
