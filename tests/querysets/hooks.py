"""Functions that the setting REDACT names in tests, and errors that hold what they are to hide."""

import re

SECRET = "hunter2-" + "s3cr3t" * 8

#: The lengths of the texts that ``redact`` was given since the test cleared it.
seen: list[int] = []


def redact(text: str) -> str:
    """Hide whole secrets only, as a pattern for keys or card numbers does."""
    seen.append(len(text))
    return re.sub(re.escape(SECRET), "[hidden]", text)


def shrink(text: str) -> str:
    """Make what is hidden much shorter, so that what follows it moves up."""
    return re.sub(r"x{100,}", "", redact(text))


def raises(text: str) -> str:
    raise ValueError(f"cannot redact {text}")


def returns_bytes(text: str) -> bytes:
    return text.encode()


def adds_what_databases_refuse(text: str) -> str:
    return f"{text}\x00\ud800"
