"""Take out, one at a time, what the promises rest on, and see that a test fails each time.

``python -m tests.removals`` works on copies of the checkout, on the database that ``DATABASE_URL`` names, and exits
with 1 if anything can be taken out without a test noticing. Names on the command line choose some of the removals.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import dj_database_url

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Removal:
    """One thing taken out: in each file the first text becomes the second."""

    name: str
    changes: dict[str, list[tuple[str, str]]]
    #: The tests that are to notice, as pytest is given them.
    tests: list[str]
    #: The databases on which it can be noticed; empty for all.
    vendors: set[str] = field(default_factory=set)


SERVERS = {"postgresql", "mysql"}

REMOVALS = [
    Removal(
        "the token in a WHERE",
        {
            "dialects/statements.py": [
                (
                    """ AND {self.qualified(columns.claimed_by)} = %s AND {self.qualified(columns.iteration)} = %s",
            (token.holder, token.iteration),
""",
                    '",\n            (),\n',
                )
            ]
        },
        ["tests/behaviour/test_fence.py", "-k", "late_write and another_holds"],
    ),
    Removal(
        "the token in a DELETE",
        {
            "dialects/base.py": [
                ("DELETE FROM {} WHERE {} AND {} RETURNING", "DELETE FROM {} WHERE {} RETURNING"),
                (
                    """            table.keyed(keys),
            table.standing(token),
            table.list_of(table.columns.key),
        )
        return table.python_keys(self.fetch(statement))

    def delete_where""",
                    """            table.keyed(keys),
            table.list_of(table.columns.key),
        )
        return table.python_keys(self.fetch(statement))

    def delete_where""",
                ),
            ]
        },
        [
            "tests/behaviour/test_completion_deleting.py",
            "-k",
            "lost_claim_deletes_nothing and plain",
        ],
        {"postgresql", "sqlite"},
    ),
    Removal(
        "the savepoint around a function of the completion",
        {
            "querysets/completing.py": [
                (
                    """        with transaction.atomic(using=alias):
            refuse_not_run(function(list(rows)), function)
            returned = True
""",
                    """        refuse_not_run(function(list(rows)), function)
        returned = True
""",
                )
            ]
        },
        ["tests/behaviour/test_completion.py", "-k", "it_loses_is_noticed"],
    ),
    Removal(
        "the check of a row count",
        {
            "querysets/losses.py": [
                (
                    "    if lost:\n        undecided",
                    "    if False:\n        undecided",
                )
            ]
        },
        ["tests/behaviour/test_fence.py", "-k", "late_write and another_holds"],
    ),
    Removal(
        "SKIP LOCKED in the reaper",
        {"dialects/base.py": [('f"{self.lock_clause} SKIP LOCKED",\n', "self.lock_clause,\n")]},
        ["tests/behaviour/test_locks.py", "-k", "reaper_frees_all_rows"],
        SERVERS,
    ),
    Removal(
        "the savepoint guard",
        {
            "querysets/transactions.py": [
                (
                    "        with guard:\n            yield\n            returned = True\n",
                    "        if True:\n            yield\n            returned = True\n",
                )
            ]
        },
        ["tests/worker/test_kinds.py", "-k", "lost_transaction"],
    ),
    Removal(
        "the renewal's own connection",
        {
            "worker/service.py": [("        use_own_connection(self.options.using)\n", "")],
        },
        ["tests/worker/test_lifelines.py", "-k", "pool"],
        {"postgresql"},
    ),
    Removal(
        "the database clock",
        {
            "querysets/operating.py": [
                ('__lte": DatabaseNow()}', '__lte": timezone.now()}'),
                (
                    "from django.db.models import Q\n",
                    "from django.db.models import Q\nfrom django.utils import timezone\n",
                ),
            ]
        },
        ["tests/behaviour/test_clocks.py"],
    ),
    Removal(
        "the exclusion from save()",
        {
            "models/fence.py": [
                ("        values = [entry for entry in values if entry[0] not in guarded]\n", "")
            ]
        },
        ["tests/behaviour/test_guarded_columns.py", "-k", "stale_instance"],
    ),
    Removal(
        "the switch in the claim statement",
        {
            "dialects/base.py": [
                (
                    "[table.in_state(Status.OPEN), self.switch_is_on(order.scopes)]",
                    "[table.in_state(Status.OPEN)]",
                )
            ],
        },
        ["tests/behaviour/test_switch.py", "-k", "very_statement"],
    ),
    Removal(
        "counting attempts at expiry",
        {
            "querysets/operating.py": [
                ('"charged": [*charge, *open_again(desk)]', '"charged": open_again(desk)')
            ]
        },
        ["tests/behaviour/test_life_cycle.py", "-k", "expired_row_of_a_worker"],
    ),
    Removal(
        "telling that a row begins",
        {"worker/claimer.py": [("tells_beginning=True", "tells_beginning=False")]},
        ["tests/worker/test_beginnings.py", "-k", "dies_before"],
    ),
    Removal(
        "running alone",
        {
            "worker/claimer.py": [
                (
                    "            self._give_back(units)\n            return\n        self._write_until_empty()\n",
                    "            self._give_back(units)\n            return\n",
                )
            ]
        },
        ["tests/worker/test_beginnings.py", "-k", "nothing_else"],
    ),
    Removal(
        "the permission to turn the switch",
        {
            "admin/control_room/views.py": [
                (
                    """        self._require(self.room.may_operate(request))
        off, form""",
                    "        off, form",
                )
            ]
        },
        [
            "tests/admin/test_control_room_security.py",
            "-k",
            "without_the_permission_nothing_is_changed",
        ],
    ),
    Removal(
        "POST alone acts in the control room",
        {
            "admin/control_room/views.py": [
                (
                    'at("failures/<slug:group>/first/", Acts(room).first, "first", require_POST)',
                    'at("failures/<slug:group>/first/", Acts(room).first, "first", require_question)',
                )
            ]
        },
        ["tests/admin/test_control_room_security.py", "-k", "get_changes_nothing"],
    ),
    Removal(
        "the time limit of a page's questions",
        {
            "admin/control_room/asking.py": [
                (
                    "with dialect_for(connections[self.alias]).time_limit(left):",
                    "with dialect_for(connections[self.alias]).time_limit(left * 1000):",
                )
            ]
        },
        ["tests/admin/test_control_room_sites.py", "-k", "hangs", "--timeout", "20"],
        {"postgresql"},
    ),
]


def main(names: list[str]) -> int:
    """Try the removals and print what came of each."""
    unnoticed = 0
    for removal in chosen(names):
        began = time.monotonic()
        said = attempt(removal)
        unnoticed += said.startswith("NOT")
        print(f"{removal.name:36} {said:60} {time.monotonic() - began:5.0f} s", flush=True)
    return int(unnoticed > 0)


def chosen(names: list[str]) -> Iterator[Removal]:
    for removal in REMOVALS:
        if not names or any(name in removal.name for name in names):
            yield removal


def attempt(removal: Removal) -> str:
    """Return whether a test noticed."""
    engine = dj_database_url.config(default="sqlite://:memory:")["ENGINE"].rpartition(".")[2]
    if removal.vendors and engine.replace("3", "") not in removal.vendors:
        return f"cannot be noticed on {engine}"
    with tempfile.TemporaryDirectory(prefix="removal-") as folder:
        copy = Path(folder)
        for name in ("django_taskclaim", "tests", "example_project"):
            shutil.copytree(ROOT / name, copy / name)
        shutil.copy(ROOT / "pyproject.toml", copy)
        if not passes(copy, removal.tests):
            return "NOT TRIED: its tests fail as they are"
        for path, changes in removal.changes.items():
            take_out(copy / "django_taskclaim" / path, changes)
        return "NOT NOTICED" if passes(copy, removal.tests) else f"noticed by {removal.tests[0]}"


def take_out(file: Path, changes: list[tuple[str, str]]) -> None:
    text = file.read_text()
    for old, new in changes:
        if text.count(old) != 1:
            raise SystemExit(
                f"{file.name} has this {text.count(old)} times instead of once:\\n{old}"
            )
        text = text.replace(old, new)
    file.write_text(text)


def passes(copy: Path, tests: list[str]) -> bool:
    """Run the tests in the copy; a run that could not even begin is an error."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests],
        cwd=copy,
        env=os.environ | {"PYTHONPATH": str(copy), "TOX_ENV_NAME": "removals"},
        capture_output=True,
        text=True,
    )
    if done.returncode not in (0, 1):
        raise SystemExit(done.stdout + done.stderr)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
