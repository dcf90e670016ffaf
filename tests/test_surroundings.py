"""Servers and sessions that are set up otherwise than the verbs would like."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection, connections

from django_taskclaim.dialects import dialect_for
from django_taskclaim.models import Switch
from tests.factories import make
from tests.testapp.models import Photo

pytestmark = pytest.mark.django_db(transaction=True)

needs_encodings = pytest.mark.skipif(
    connection.vendor != "postgresql", reason="needs a database whose encoding is not Unicode"
)
needs_server_isolation = pytest.mark.skipif(
    connection.vendor != "postgresql",
    reason="needs an isolation level that Django leaves to the server",
)


def use(settings: dict[str, Any]) -> None:
    """Let this thread's default connection be one with *settings*."""
    wrapper = type(connections["default"])(settings, "default")
    connections["default"] = wrapper


@pytest.fixture
def session_of_its_own() -> Iterator[dict[str, Any]]:
    """Settings of the default connection, to be changed and given to ``use``; put right afterwards."""
    usual = connections["default"]
    yield copy.deepcopy(usual.settings_dict)
    connections["default"].close()
    connections["default"] = usual


@needs_server_isolation
def test_claims_that_meet_under_a_servers_own_isolation(
    session_of_its_own: dict[str, Any],
) -> None:
    """A server whose default is REPEATABLE READ does not make claims fail: they set their own level."""
    session_of_its_own["OPTIONS"]["options"] = "-c default_transaction_isolation=repeatable\\ read"
    use(session_of_its_own)
    with connection.cursor() as cursor:
        cursor.execute("SHOW transaction_isolation")
        assert cursor.fetchone() == ("repeatable read",)
    with dialect_for(connection).own_transaction(), connection.cursor() as cursor:
        cursor.execute("SHOW transaction_isolation")
        assert cursor.fetchone() == ("read committed",)


@needs_encodings
def test_a_text_that_the_encoding_lacks_is_stored_in_escapes(
    session_of_its_own: dict[str, Any],
) -> None:
    """In a LATIN1 database an error with an emoji fails its row all the same, the emoji as an escape."""
    name = f"{session_of_its_own['NAME']}_latin1"
    with connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        cursor.execute(
            f"CREATE DATABASE {name} ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
        )
    usual = connections["default"]
    use(session_of_its_own | {"NAME": name})
    try:
        with connection.schema_editor() as editor:
            for model in (Switch, Photo):
                editor.create_model(model)
        make(Photo, 2)
        rows = Photo.objects.claim_batch(2)
        assert Photo.objects.fail(rows[:1], ValueError("no 🎈 here"), retry=False) == 1
        assert Photo.objects.fail(rows[1:], "again 🎈") == 1
        texts = set(Photo.objects.values_list("last_error", flat=True))
        assert texts == {"no \\U0001f388 here", "again \\U0001f388"}
    finally:
        connections["default"].close()
        connections["default"] = usual
        with connection.cursor() as cursor:
            # The session that has just been closed may not have ended yet.
            cursor.execute(f"DROP DATABASE {name} WITH (FORCE)")
