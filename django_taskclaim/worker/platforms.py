"""What a worker needs of the machine it runs on, asked before anything is claimed."""

import signal
import sys
import threading
from contextlib import suppress
from importlib import import_module

#: What a supervisor waits for its children with; Windows has none of them, macOS lacks the first.
SIGNALS = ("sigtimedwait", "pthread_sigmask", "SIGCHLD")

#: The claimer's and the service's, beside those of handlers.
OWN_THREADS = 2


def show_title(title: str) -> None:
    """Have ``ps`` and ``top`` say what this process is, where setproctitle is installed."""
    with suppress(ImportError):
        import_module("setproctitle").setproctitle(f"claimworker: {title}")


def lacking(*, in_process: bool, threads: int) -> list[str]:
    """Return in sentences what the platform cannot do for a worker with so many handler threads in a process."""
    missing = [name for name in SIGNALS if not hasattr(signal, name)]
    if missing and not in_process:
        return [
            f"This platform ({sys.platform}) cannot supervise worker processes, for it has no signal.{missing[0]}; add"
            " --in-process, and start several of them instead of --processes."
        ]
    needed = threads + OWN_THREADS
    refused = _refused(needed)
    if refused is None:
        return []
    return [
        f"A worker needs {needed} threads beside its main one, and this platform ({sys.platform}) refuses them:"
        f" {refused}. See to its limits (ulimit -u), or use claim_batch() or take(), which need none."
    ]


def _refused(threads: int) -> RuntimeError | None:
    """Start so many threads, which end at once, and return the error of the first that could not be."""
    end = threading.Event()
    started: list[threading.Thread] = []
    try:
        for _ in range(threads):
            thread = threading.Thread(target=end.wait, daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError as error:
        return error
    finally:
        end.set()
        for thread in started:
            thread.join()
    return None
