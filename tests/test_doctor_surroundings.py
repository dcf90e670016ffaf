"""What the doctor and the checks say of servers and settings, on servers and settings that are so."""

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection, connections

from django_taskclaim.dialects import dialect_for
from django_taskclaim.dialects import sqlite as sqlite_dialect
from django_taskclaim.querysets.scope import Desk
from tests.factories import SHAPES
from tests.test_doctor import changes_tables, execute
from tests.testapp.models import ClaimOnly

pytestmark = pytest.mark.django_db(databases="__all__")


@contextlib.contextmanager
def configured(**options: Any) -> Iterator[Any]:
    """Yield the dialect of a connection with other OPTIONS."""
    other = connections.create_connection("default")
    other.settings_dict = {
        **connection.settings_dict,
        "OPTIONS": {**connection.settings_dict["OPTIONS"], **options},
    }
    try:
        yield dialect_for(other)
    finally:
        other.close()


def ids(faults: Any) -> list[str]:
    return [fault.id for fault in faults]


def test_the_tests_own_database_is_in_order() -> None:
    dialect = dialect_for(connection)
    tables = [Desk.of(model, "default").table for model in SHAPES]
    assert [*dialect.configured_faults(), *dialect.server_faults(tables)] == []


def only_on(*vendors: str) -> None:
    if connection.vendor not in vendors:
        pytest.skip(f"a setting that only {' and '.join(vendors)} has")


def test_sqlite_transactions_should_begin_immediate(monkeypatch: pytest.MonkeyPatch) -> None:
    only_on("sqlite")
    with configured(transaction_mode="DEFERRED") as dialect:
        assert ids(dialect.configured_faults()) == ["W001"]
    with configured(transaction_mode="exclusive") as dialect:
        assert ids(dialect.configured_faults()) == []
    monkeypatch.setattr(sqlite_dialect, "OLDEST", (99, 0))
    assert ids(dialect_for(connection).server_faults([])) == ["E101"]


def test_mysql_must_count_found_rows() -> None:
    only_on("mysql")
    with configured(client_flag=0) as dialect:
        assert ids(dialect.configured_faults()) == ["E007"]
    with configured(client_flag=2 | 65536) as dialect:
        assert ids(dialect.configured_faults()) == []


@pytest.mark.parametrize("level", ["repeatable read", None])
def test_mysql_isolation(level: str | None) -> None:
    only_on("mysql")
    with configured(isolation_level=level) as dialect:
        assert ids(dialect.configured_faults()) == ["W002"]


def test_mysql_binary_log() -> None:
    only_on("mysql")
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@log_bin, @@binlog_format")
        logs, usual = cursor.fetchone()
        if not logs:
            pytest.skip("the server writes no binary log")
        cursor.execute("SET SESSION binlog_format = 'STATEMENT'")
        try:
            assert ids(dialect_for(connection).server_faults([])) == ["E103"]
        finally:
            cursor.execute("SET SESSION binlog_format = %s", [usual])


@changes_tables
def test_mysql_engine_and_collation_are_mended_by_the_hint() -> None:
    only_on("mysql")
    table = Desk.of(ClaimOnly, "default").table
    damage = {
        "E102": f"ALTER TABLE {table.name} ENGINE = MyISAM",
        "E104": f"ALTER TABLE {table.name} MODIFY claimed_by varchar(200) COLLATE utf8mb4_general_ci NULL",
    }
    for wanted, statement in damage.items():
        execute(statement)
        faults = list(dialect_for(connection).server_faults([table]))
        for fault in faults:
            execute(fault.hint)
        assert ids(faults) == [wanted]
        assert ids(dialect_for(connection).server_faults([table])) == []


def test_postgresql_isolation_in_the_settings() -> None:
    only_on("postgresql")
    from django.db.backends.postgresql.psycopg_any import IsolationLevel

    with configured(isolation_level=IsolationLevel.SERIALIZABLE) as dialect:
        assert ids(dialect.configured_faults()) == ["W002"]
    with configured(isolation_level=IsolationLevel.READ_COMMITTED) as dialect:
        assert ids(dialect.configured_faults()) == []


@pytest.mark.parametrize(
    ("setting", "fault"),
    [
        ("default_transaction_isolation=serializable", "E105"),
        ("default_transaction_read_only=on", "E106"),
    ],
)
def test_postgresql_defaults_of_the_server(setting: str, fault: str) -> None:
    only_on("postgresql")
    with configured(options=f"-c {setting}") as dialect:
        assert ids(dialect.server_faults([])) == [fault]


class Pooler(threading.Thread):
    """Passes connections on, and tells them another process number, as poolers do."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.door = socket.create_server(("127.0.0.1", 0))
        self.port = self.door.getsockname()[1]

    def run(self) -> None:
        while True:
            client, _ = self.door.accept()
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client: socket.socket) -> None:
        settings = connection.settings_dict
        server = socket.create_connection((settings["HOST"], int(settings["PORT"] or 5432)))
        # Closed here alone, once nobody reads from them any more.
        with client, server:
            back = threading.Thread(target=self.copy, args=(server, client), daemon=True)
            back.start()
            self.copy(client, server)
            back.join()

    def copy(self, source: socket.socket, target: socket.socket) -> None:
        """Copy to the end of the stream; in BackendKeyData, the message K of 12 bytes, change the number."""
        mark = b"K" + struct.pack(">i", 12)
        # A client that dies resets its connection: the stream has ended, and the other side has to hear of it.
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                place = data.find(mark)
                if place >= 0:
                    start = place + len(mark)
                    data = data[:start] + struct.pack(">i", 77) + data[start + 4 :]
                target.sendall(data)
        with contextlib.suppress(OSError):
            # The other side may have gone first.
            target.shutdown(socket.SHUT_WR)


def test_a_pooler_is_noticed() -> None:
    only_on("postgresql")
    pooler = Pooler()
    pooler.start()
    with configured(sslmode="disable", gssencmode="disable") as dialect:
        dialect.connection.settings_dict |= {"HOST": "127.0.0.1", "PORT": pooler.port}
        assert ids(dialect.server_faults([])) == ["W107"]
        dialect.connection.settings_dict["DISABLE_SERVER_SIDE_CURSORS"] = True
        assert ids(dialect.server_faults([])) == []
