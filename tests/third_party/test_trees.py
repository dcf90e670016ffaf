"""Rows of a tree that are claimed: django-treebeard's three kinds, and django-mptt's."""

from typing import Any

import pytest

from tests.third_party.app.models import Genre, Region, Staff, Topic

pytestmark = pytest.mark.django_db


def add(model: Any, name: str, under: Any = None) -> Any:
    """Make a node as the package wants it made."""
    if model is Genre:
        return Genre.objects.create(name=name, parent=under and Genre.objects.get(pk=under.pk))
    return again(under).add_child(name=name) if under else model.add_root(name=name)


def move(node: Any, under: Any) -> None:
    if isinstance(node, Genre):
        again(node).move_to(again(under), "last-child")
    else:
        again(node).move(again(under), "last-child")


def again(node: Any) -> Any:
    return type(node).objects.get(pk=node.pk)


def names(nodes: Any) -> list[str]:
    return [node.name for node in nodes]


def whole(model: Any) -> list[str]:
    """Return the names of the whole tree, in its order, after the package's own look for mistakes."""
    if model is Genre:
        before = list(Genre.objects.values_list("pk", "lft", "rght", "level"))
        Genre.objects.rebuild()
        assert list(Genre.objects.values_list("pk", "lft", "rght", "level")) == before
        return names(Genre.objects.all())
    if model is Topic:
        assert model.find_problems() == ([], [], [], [], [])
    return names(model.get_tree())


KINDS_OF_TREES = [Topic, Region, Staff, Genre]
KINDS = pytest.mark.parametrize("model", KINDS_OF_TREES)


@KINDS
def test_a_node_is_moved_while_it_is_worked_on(model: Any) -> None:
    """The result is written, and the place stays the new one."""
    a = add(model, "A")
    b = add(model, "B", a)
    add(model, "C", b)
    d = add(model, "D")
    assert whole(model) == ["A", "B", "C", "D"]
    (first,) = model.objects.filter(name="B").claim_batch(1)
    move(b, d)
    first.slug = "done"
    first.claim.complete(update_fields=["slug"])
    assert whole(model) == ["A", "D", "B", "C"]
    assert again(b).status == "complete"
    again(b).delete()
    assert whole(model) == ["A", "D"]
