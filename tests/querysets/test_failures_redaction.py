"""With REDACT nothing that the hook hides is stored or logged; where it fails, nothing of the text is."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.checks import run_checks

from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.testing import run_due
from tests.doctor.support import handling
from tests.factories import make
from tests.querysets import hooks
from tests.querysets.hooks import SECRET
from tests.querysets.late_writes import claimed
from tests.querysets.support import facts, lose
from tests.testapp.models import Photo, TextKey

pytestmark = [pytest.mark.django_db(databases="__all__"), pytest.mark.once]

HALF = SECRET[: len(SECRET) // 2]

Use = Callable[..., None]


@pytest.fixture
def use(settings: Any) -> Use:
    """Name a function of ``hooks`` as the hook, beside other settings."""

    def name(hook: str, **more: Any) -> None:
        hooks.seen.clear()
        settings.TASKCLAIM = {"REDACT": f"tests.querysets.hooks.{hook}", **more}

    return name


def logged(caplog: Any) -> str:
    """Return all that the log records hold, formatted and in their attributes."""
    return "\n".join([caplog.text, *(repr(vars(record)) for record in caplog.records)])


def leak(photo: Any) -> None:
    """Raise an error with the secret in its message, its cause, a note and a member."""
    try:
        raise KeyError(f"cause {SECRET}")
    except KeyError as error:
        group = ExceptionGroup(f"message {SECRET}", [ValueError(f"member {SECRET}")])
        group.add_note(f"note {SECRET}")
        raise group from error


@pytest.fixture
def leaked() -> Iterator[Callable[[], Any]]:
    """Let a worker run into ``leak``, and return what its row keeps."""

    def run() -> Any:
        (row,) = make(Photo)
        run_due(Photo)
        return facts(row)

    with handling(Photo, leak):
        yield run


def test_nothing_hidden_is_stored_or_logged(use: Use, caplog: Any, leaked: Any) -> None:
    use("redact", STORE_TRACEBACK=True)
    now = leaked()
    for text in (now.last_error, logged(caplog)):
        assert HALF not in text
        assert text.count("[hidden]") >= 3
        assert "in leak" in text
    assert "note [hidden]" in now.last_error


@pytest.mark.parametrize("hook", ["raises", "returns_bytes", "missing"])
def test_a_hook_that_fails_withholds_the_text_and_the_check_finds_it(
    hook: str, use: Use, caplog: Any, leaked: Any
) -> None:
    use(hook, STORE_TRACEBACK=True)
    now = leaked()
    assert (now.status, now.attempts, now.error_class) == ("open", 1, "ExceptionGroup")
    assert now.last_error.startswith("<withheld: REDACT ")
    for text in (now.last_error, logged(caplog)):
        assert HALF not in text
        assert "in leak" not in text
    assert "<withheld: REDACT " in logged(caplog)
    assert "taskclaim.E013" in {message.id for message in run_checks()}


def test_a_text_given_to_fail_is_redacted_and_what_a_hook_adds_is_escaped(use: Use) -> None:
    use("redact")
    row = claimed(Photo)
    row.fail(f"the answer was {SECRET}")
    assert facts(row).last_error == "the answer was [hidden]"
    use("adds_what_databases_refuse")
    row = claimed(Photo)
    row.fail("x")
    assert facts(row).last_error == "x\\x00\\ud800"


def test_a_key_in_the_log_of_a_loss_is_redacted(use: Use, caplog: Any) -> None:
    use("redact")
    TextKey.objects.create(key=SECRET)
    (row,) = TextKey.objects.claim_batch(1)
    lose(row)
    with pytest.raises(ClaimLost):
        row.complete()
    assert "testapp.TextKey '[hidden]'" in logged(caplog)


@pytest.mark.parametrize("hook", ["redact", "shrink"])
def test_no_cut_lets_half_a_secret_through(hook: str, use: Use) -> None:
    """Neither the cut to what the hook is given nor the cut to the stored length does."""
    use(hook)
    for start in [4000 - len(SECRET) // 2, *range(65_536 - len(SECRET) - 2, 65_536 + 2, 9)]:
        row = claimed(Photo)
        row.fail("x" * start + SECRET + "y" * 200_000)
        shown = facts(row).last_error
        assert len(shown) <= 4000
        assert "hunter2" not in shown
        assert "s3cr3t" not in shown
    claimed(Photo).fail(ValueError("x" * 50_000_000))
    assert max(hooks.seen) <= 65_536
