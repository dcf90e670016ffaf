"""Code in documents runs, and gives what it says: a line that ends in ``# → value`` is compared with that value."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).resolve().parent.parent / "docs"


def blocks(text: str, language: str, name: str = "line") -> list[Any]:
    """Return the fenced blocks of one language, each named by its line in the document."""
    found = re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [
        pytest.param(match[1], id=f"{name} {text[: match.start()].count(chr(10)) + 2}")
        for match in found
    ]


class Expecting(ast.NodeTransformer):
    """Turn each expression that stands beside ``# → value`` into a comparison."""

    def __init__(self, source: str) -> None:
        self.lines = source.splitlines()
        self.found = 0

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        comment = re.search(r"# → (.*)$", self.lines[(node.end_lineno or node.lineno) - 1])
        if comment is None:
            return node
        self.found += 1
        wanted = ast.parse(comment[1], mode="eval").body
        call = ast.Call(ast.Name("expect", ast.Load()), [node.value, wanted], [])
        return ast.fix_missing_locations(ast.copy_location(ast.Expr(call), node))


def expect(found: Any, wanted: Any) -> None:
    assert found == wanted, f"{found!r}, not {wanted!r}"


def run(source: str, names: dict[str, Any], document: str) -> None:
    """Run a block of *document* with *names* at hand, which gain those that the block makes."""
    expecting = Expecting(source)
    tree = expecting.visit(ast.parse(source))
    assert expecting.found == source.count("# →"), (
        "an arrow stands beside something that is no expression"
    )
    names["expect"] = expect
    exec(compile(tree, document, "exec"), names)


def table(heading: str) -> dict[str, str]:
    """Return the first two columns of the tables in docs/ that begin with *heading* and "default"."""
    found: dict[str, str] = {}
    for name in ("handlers", "workers", "settings", "leases", "take"):
        text = (DOCS / f"{name}.md").read_text(encoding="utf-8")
        begin = rf"^\| {heading} \| default \|.*\n\|[-| ]+\|\n((?:\|.*\n)+)"
        for rows in re.findall(begin, text, re.MULTILINE):
            cells = [row.split("|") for row in rows.splitlines()]
            found |= {cell[1].strip().strip("`"): cell[2].strip() for cell in cells}
    return found
