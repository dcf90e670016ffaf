"""With REDACT nothing that the hook hides is stored or logged, and where it fails nothing of the text is."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_taskclaim.checks.settings import check_redaction, check_settings
from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.failures import described, redacted, traceback_of
from django_taskclaim.worker import records
from tests.behaviour import hooks
from tests.behaviour.hooks import SECRET
from tests.behaviour.support import DEADLINE, elsewhere, facts, lose
from tests.factories import make
from tests.testapp.models import Photo, TextKey

pytestmark = pytest.mark.django_db

HALF = SECRET[: len(SECRET) // 2]


@pytest.fixture
def use(settings: Any) -> Callable[..., None]:
    """Name a function of ``hooks`` as the hook, beside other settings."""

    def name(hook: str, **more: Any) -> None:
        hooks.seen.clear()
        settings.TASKCLAIM = {"REDACT": f"tests.behaviour.hooks.{hook}", **more}

    return name


@pytest.fixture
def logged() -> Iterator[Callable[[], str]]:
    """Return all that the records since hold, formatted and in their attributes."""
    lines: list[str] = []

    def emit(record: logging.LogRecord) -> None:
        lines.append(handler.format(record))
        lines.append(repr(vars(record)))

    handler = logging.Handler()
    handler.emit = emit  # type: ignore[method-assign]
    ours = logging.getLogger("django_taskclaim")
    ours.addHandler(handler)
    yield lambda: "\n".join(lines)
    ours.removeHandler(handler)


def claimed(model: Any = Photo) -> Any:
    make(model)
    (row,) = model.objects.claim_batch(1)
    return row


def leak() -> BaseException:
    """Return an error with the secret in its message, its cause, a note, a member, and a line of its source."""
    try:
        try:
            raise KeyError(f"cause {SECRET}")
        except KeyError as error:
            group = ExceptionGroup(f"message {SECRET}", [ValueError(f"member {SECRET}")])
            group.add_note(f"note {SECRET}")
            raise group from error
    except ExceptionGroup as error:
        return error


def record(row: Any, error: BaseException) -> None:
    """Fail the row and log it as a worker does, with everything else that a worker says of an error."""
    row.fail(error)
    records.failed(row, 0.1, *described(error), ran=0.1, final=False, raised=error)
    records.Limited().warn("writing a result", error)
    other = claimed()
    records.lost(other, "noticed when its result was written", error=error)
    records.lost(other, "noticed again", error=error)


def test_without_a_hook_the_log_carries_the_exception_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    error = leak()
    records.failed(claimed(), 0.1, *described(error), ran=0.1, final=False, raised=error)
    (said,) = caplog.records
    assert said.exc_info is not None
    assert said.exc_info[1] is error


def test_nothing_hidden_is_stored_or_logged(
    use: Callable[..., None], logged: Callable[[], str]
) -> None:
    use("redact", STORE_TRACEBACK=True)
    row = claimed()
    record(row, leak())
    for text in (facts(row).last_error, logged()):
        assert SECRET not in text
        assert HALF not in text
        assert text.count("[hidden]") >= 4
        assert "Traceback" in text
        assert "in leak" in text
    assert "exc_info': None" in logged()
    assert "note [hidden]" in facts(row).last_error


@pytest.mark.parametrize(
    ("hook", "fault"),
    [
        ("raises", "REDACT raised ValueError"),
        ("returns_bytes", "REDACT returned bytes, which is no text"),
        ("returns_nothing", "REDACT returned NoneType, which is no text"),
        ("missing", "REDACT raised ImportError"),
        ("not_callable", "REDACT raised TypeError"),
    ],
)
def test_a_hook_that_fails_withholds_the_text(
    hook: str, fault: str, use: Callable[..., None], logged: Callable[[], str]
) -> None:
    use(hook, STORE_TRACEBACK=True)
    row = claimed()
    record(row, leak())
    now = facts(row)
    assert (now.status, now.attempts, now.error_class) == ("open", 1, "ExceptionGroup")
    assert now.last_error.startswith(f"<withheld: {fault}>")
    for text in (now.last_error, logged()):
        assert HALF not in text
        assert "in leak" not in text
    assert fault in logged()


def test_an_interrupt_of_the_hook_passes_on_in_the_main_thread_alone(
    use: Callable[..., None],
) -> None:
    use("exits")
    row = claimed()
    with pytest.raises(SystemExit):
        row.fail("x")
    assert facts(row).status == "processing"
    told = elsewhere(described, "x").result(DEADLINE)
    assert told == ("", "<withheld: REDACT raised SystemExit>")


def test_a_text_given_to_fail_is_redacted_too(use: Callable[..., None]) -> None:
    use("redact")
    row = claimed()
    row.fail(f"the answer was {SECRET}")
    assert facts(row).last_error == "the answer was [hidden]"


def test_what_a_hook_adds_is_stored_in_escapes(use: Callable[..., None]) -> None:
    use("adds_what_databases_refuse")
    row = claimed()
    row.fail("x")
    assert facts(row).last_error == "x\\x00\\ud800"


def test_a_loss_is_redacted(use: Callable[..., None], logged: Callable[[], str]) -> None:
    """A key may be a secret; the sentence about the loss does not tell it."""
    use("redact")
    TextKey.objects.create(key=SECRET)
    (row,) = TextKey.objects.claim_batch(1)
    lose(row)
    with pytest.raises(ClaimLost):
        row.complete()
    assert "Nothing was written for testapp.TextKey '[hidden]'" in logged()


def test_nothing_is_redacted_where_there_is_nothing_to_say(use: Callable[..., None]) -> None:
    use("raises")
    assert described(KeyError()) == ("KeyError", "")


# Texts of any size


@pytest.mark.parametrize("hook", ["redact", "shrink"])
@pytest.mark.parametrize("length", [100, 4000, 100_000])
def test_no_cut_lets_half_a_secret_through(
    hook: str, length: int, use: Callable[..., None]
) -> None:
    """Wherever the secret lies, across the cut to what the hook sees or the cut to size, no half of it remains."""
    use(hook, ERROR_LENGTH=length)
    bound = max(65_536, 2 * length)
    starts = [length - len(SECRET) // 2, *range(bound - len(SECRET) - 2, bound + 2, 3)]
    for start in starts:
        text = "x" * start + SECRET + "y" * 200_000
        shown = described(ValueError(text))[1]
        assert "hunter2" not in shown
        assert "s3cr3t" not in shown
        assert len(shown) <= length
        reverse = redacted("y" * 200_000 + SECRET + "x" * start, keep_end=True)
        assert "s3cr3t" not in reverse
        assert "hunter2" not in reverse


def test_the_hook_is_given_texts_of_bounded_size(use: Callable[..., None]) -> None:
    use("redact", STORE_TRACEBACK=True)
    row = claimed()
    row.fail(ValueError("x" * 50_000_000))
    assert len(facts(row).last_error) == 4000
    assert max(hooks.seen) <= 65_536


def test_what_can_be_kept_is_kept(use: Callable[..., None]) -> None:
    use("redact", ERROR_LENGTH=100_000)
    assert described("x" * 200_000) == ("", "x" * 99_999 + "…")
    use("redact")
    assert described("x" * 200_000) == ("", "x" * 3_999 + "…")


def test_a_traceback_as_text_ends_with_the_error(use: Callable[..., None]) -> None:
    use("redact")
    text = traceback_of(leak())
    assert text.index("KeyError: 'cause [hidden]'") < text.index("direct cause")
    assert "ExceptionGroup: message [hidden]" in text
    assert text.endswith("- ValueError: member [hidden]")


# The check


@pytest.mark.parametrize("hook", ["raises", "returns_bytes", "returns_nothing", "missing"])
def test_a_hook_that_cannot_work_is_found_by_the_check(hook: str, use: Callable[..., None]) -> None:
    use(hook)
    (message,) = check_redaction()
    assert message.id == "taskclaim.E013"
    assert f"tests.behaviour.hooks.{hook}" in message.msg
    assert message.hint


def test_a_hook_that_works_and_no_hook_are_no_fault(use: Callable[..., None]) -> None:
    assert check_redaction() == []
    use("redact")
    assert check_redaction() == check_settings() == []


@pytest.mark.parametrize("wrong", [{"REDACT": 5}, {"REDACT": "redact"}, {"STORE_TRACEBACK": "yes"}])
def test_values_of_another_kind_are_wrong_settings(wrong: dict[str, Any], settings: Any) -> None:
    settings.TASKCLAIM = wrong
    assert "taskclaim.E001" in {message.id for message in check_settings()}
