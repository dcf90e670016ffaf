"""What a worker needs of the machine it runs on, asked before anything is claimed."""

import signal
import sys
from contextlib import suppress
from importlib import import_module

#: What a supervisor waits for its children with; Windows has none of them, macOS lacks the first.
SIGNALS = ("sigtimedwait", "pthread_sigmask", "SIGCHLD")


def show_title(title: str) -> None:
    """Have ``ps`` and ``top`` show what this process is, where setproctitle is installed."""
    with suppress(ImportError):
        import_module("setproctitle").setproctitle(f"claimworker: {title}")


def why_not_supervised() -> list[str]:
    """Return, in a sentence, why this platform cannot supervise worker processes; empty where it can."""
    missing = [name for name in SIGNALS if not hasattr(signal, name)]
    return [
        f"This platform ({sys.platform}) cannot supervise worker processes, for it has no signal.{name}; add"
        " --in-process, and start several of them instead of --processes."
        for name in missing[:1]
    ]
