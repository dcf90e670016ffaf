"""A permission and a queryset say who may edit which article, at each act; a refusal writes nothing."""

from typing import Any

import pytest
from articles.models import Article
from articles.views import EditArticle, MyArticles
from django.contrib.auth.models import Permission

from tests.contrib.conftest import Editor, address, words
from tests.querysets.support import clock, facts, set_raw, stored

pytestmark = [pytest.mark.once, pytest.mark.django_db]


@pytest.fixture
def odd_denied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody may change odd articles."""
    even = Article.objects.filter(source__in=["0", "2", "4", "6"])
    for view in (EditArticle, MyArticles):
        monkeypatch.setattr(view, "get_queryset", lambda self: even.all())


def grant(editor: Editor, *codenames: str) -> None:
    editor.user.groups.clear()
    editor.user.user_permissions.set(Permission.objects.filter(codename__in=codenames))


def claimed(who: str, row: Any) -> Any:
    (held,) = Article.objects.filter(pk=row.pk).claim_batch(1, claimed_by=who)
    return held


def refused(editor: Editor, path: str, **fields: Any) -> str:
    answer = editor.send(path, **fields)
    assert answer.status_code in (403, 404, 409), fields
    return words(answer)


def everything_tried(editor: Editor, free: Any, mine: Any, theirs: Any) -> list[str]:
    """Try each act on the rows, see that each is refused and changes nothing, and return what the pages said."""
    rows = (free, mine, theirs)
    before = [stored(row) for row in rows]
    form = {
        "title": "T",
        "text": "Many <words>.",
        "verdict": "keep",
        "taskclaim_token": str(mine.claim.token),
        "taskclaim_to": str(editor.user.pk),
    }
    pages = [words(editor.look(address(row.pk))) for row in rows]
    assert editor.page.status_code in (403, 404)
    for act in ("save", "finish", "hand_over", "renew"):
        pages.append(refused(editor, address(mine.pk), **form, act=act))
    pages.append(refused(editor, address(mine.pk), **form, act="skip"))
    pages.append(refused(editor, address(free.pk), act="take"))
    assert [stored(row) for row in rows] == before
    return pages


@pytest.mark.usefixtures("odd_denied")
def test_a_row_that_a_person_may_not_edit_is_neither_claimed_nor_shown_nor_changed(
    ada: Editor, ben: Editor, articles: list[Article]
) -> None:
    even, odd = articles[::2], articles[1::2]
    assert ada.fetch() == [row.pk for row in even]
    assert {facts(row).iteration for row in odd} == {0}

    mine, theirs = claimed(ada.who, odd[1]), claimed(ben.who, odd[2])
    assert ada.fetch() == [row.pk for row in even]
    page = words(ada.look("/articles/?asked"))
    assert "Nothing is left to do." in page
    for text in (page, *everything_tried(ada, odd[0], mine, theirs)):
        assert not any(f"{row.title}<" in text or row.text in text for row in odd)


@pytest.mark.usefixtures("odd_denied")
def test_a_claim_lapses_when_its_holder_may_no_longer_edit_the_row(
    ada: Editor, ben: Editor, articles: list[Article]
) -> None:
    lapsed = [claimed(ben.who, row) for row in articles[6:]]
    for row in lapsed:
        set_raw(row, "expires_at", clock("-1 MINUTE"))
    held = [claimed(ada.who, row) for row in articles[:2]]
    for row in held:
        set_raw(row, "expires_at", clock("+1 MINUTE"))
    even, odd = (facts(row).expires_at for row in held)
    assert ada.mine() == [held[0].pk]
    codes = [ada.look(address(row.pk)).status_code for row in held]
    assert codes == [200, 404]
    assert ada.send(act="renew").status_code == 204
    assert facts(held[0]).expires_at > even
    assert facts(held[1]).expires_at == odd
    ada.send(act="more")
    assert [facts(row).claimed_by for row in (held[1], *lapsed)] == [ada.who, ada.who, ben.who]


def test_without_the_change_permission_nobody_does_anything(
    ada: Editor, ben: Editor, articles: list[Article]
) -> None:
    mine, theirs = claimed(ada.who, articles[0]), claimed(ben.who, articles[1])
    grant(ada, "view_article")
    pages = everything_tried(ada, articles[2], mine, theirs)
    assert ada.look().status_code == 403
    pages += [refused(ada, "/articles/", act=act) for act in ("more", "renew")]
    assert Article.objects.open().count() == 6
    assert not any("Article 0" in page for page in pages)


def test_nothing_is_handed_over_to_a_person_who_may_not_edit_it(
    ada: Editor, ben: Editor, articles: list[Article], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = claimed(ada.who, articles[0])
    grant(ben, "view_article")
    monkeypatch.setattr(EditArticle, "colleagues", lambda self: [ben.user])
    fields = ada.open(row.pk) | {"text": "Half done.", "taskclaim_to": ben.user.pk}
    answer = ada.send(address(row.pk), **fields, act="hand_over")
    assert "Choose a colleague who may change this." in words(answer)
    assert "Half done." in words(answer)
    assert facts(row).claimed_by == ada.who
