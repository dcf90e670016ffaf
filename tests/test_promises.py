"""Each promise has tests that fail when it is broken.

A test that guards a promise has the mark ``@pytest.mark.promise(number)``; ``pytest -m promise`` runs all of them.
"""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

TESTS = Path(__file__).resolve().parent
PROMISES = {
    1: "At most one unexpired claim stands on a row.",
    2: "claim_batch(n) returns at most n rows that match, committed; it refuses what it cannot claim from.",
    3: "Every write through a claim is fenced; a lost claim changes nothing and raises ClaimLost.",
    4: "complete is final until a reset.",
    5: "An atomic handler and its completion are one transaction; each extra run of others is explained by a record.",
    6: "Only the database's clock decides about leases.",
    7: "After kill -9 every row comes back by itself; a frozen worker blocks nobody for more than two leases.",
    8: "A worker that cannot renew gives up its claims before they expire.",
    9: "No claim that starts after a pause takes a row; after a resume claims flow again.",
    10: "One bad row stops no other; a row that kills its worker ends in failed.",
    11: "A stop gives back what has not started, uncharged; the exit code tells how it ended.",
    12: "Workers outlive outages of the database, and an outage charges no row.",
    13: "Memory, connections and descriptors do not grow with the rows.",
    14: "Unsupported surroundings are refused with a sentence.",
}


def numbers(mark: ast.expr) -> set[int]:
    """Return the numbers in ``pytest.mark.promise(...)``, or in a list of marks."""
    return {
        argument.value
        for node in ast.walk(mark)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.promise"
        for argument in node.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, int)
    }


def guards() -> dict[int, list[str]]:
    """Return the marked tests of each promise, as ``file::function``."""
    found: dict[int, list[str]] = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        of_file = {
            number
            for node in tree.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
            for number in numbers(node.value)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                own = {number for mark in node.decorator_list for number in numbers(mark)}
                for number in own | of_file:
                    found[number].append(f"{path.relative_to(TESTS)}::{node.name}")
    return found


def test_every_promise_has_tests_and_every_mark_names_one() -> None:
    found = guards()
    missing = {number: text for number, text in PROMISES.items() if number not in found}
    assert (missing, found.keys() - PROMISES.keys()) == ({}, set())
