"""Two editors, articles, and how a browser without JavaScript would use the pages."""

from collections.abc import Callable
from typing import Any

import pytest
from articles.models import Article
from articles.staff import make_editors
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client

from django_taskclaim.holders import holder_of

CSRF = "x" * 32


class Editor:
    """Somebody at a browser."""

    def __init__(self, name: str) -> None:
        self.user = User.objects.get(username=name)
        self.client = Client(enforce_csrf_checks=True)
        self.client.force_login(self.user)
        self.client.cookies[settings.CSRF_COOKIE_NAME] = CSRF
        self.who = holder_of(self.user)

    def look(self, path: str = "/articles/") -> Any:
        self.page = self.client.get(path)
        forms = self.page.content.decode().split('<form method="post"')[1:]
        assert all("csrfmiddlewaretoken" in form.partition("</form>")[0] for form in forms)
        return self.page

    def send(self, path: str = "/articles/", **fields: Any) -> Any:
        """Send a form."""
        answer = self.client.post(path, {**fields, "csrfmiddlewaretoken": CSRF})
        if answer.status_code != 302:
            return answer
        return self.look(answer.headers["Location"])

    def mine(self) -> list[int]:
        """Return the keys of what the list shows as held."""
        self.look()
        return [row.pk for row in self.page.context["rows"]]

    def fetch(self) -> list[int]:
        """Press the button for more, and return what the list shows then."""
        self.look()
        self.send(act="more")
        return self.mine()

    def open(self, pk: int) -> dict[str, Any]:
        """Open an article, and return what its form would send."""
        form = self.look(address(pk)).context["form"]
        fields = {name: form[name].value() or "" for name in form.fields}
        return fields | {"taskclaim_token": self.page.context["token"]}

    def act(self, pk: int, act: str, **fields: Any) -> Any:
        """Open an article that one holds, fill in its form, and press a button."""
        return self.send(address(pk), **self.open(pk) | fields, act=act)


def address(pk: int) -> str:
    return f"/articles/{pk}/"


def words(answer: Any) -> str:
    return " ".join(answer.content.decode().split())


@pytest.fixture
def articles(db: None) -> list[Article]:
    """Eight articles."""
    rows = [Article(source=str(n), title=f"Article {n}", text=f"Text {n}.") for n in range(8)]
    Article.objects.bulk_create(rows)
    return list(Article.objects.order_by("pk"))


@pytest.fixture
def editor(articles: Any) -> Callable[[str], Editor]:
    make_editors()
    return Editor


@pytest.fixture
def ada(editor: Callable[[str], Editor]) -> Editor:
    return editor("ada")


@pytest.fixture
def ben(editor: Callable[[str], Editor]) -> Editor:
    return editor("ben")


@pytest.fixture
def held(ada: Editor) -> int:
    """An article that Ada holds."""
    return ada.fetch()[0]
