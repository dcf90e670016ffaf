"""Python in a process of its own."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

#: Holds a ``sitecustomize`` that shifts what Python takes for the time.
CLOCKS = Path(__file__).parent / "chaos" / "clocks"


def output_of(*words: str, env: Mapping[str, str], **options: Any) -> str:
    """Run Python with these words, and return what it said; fail unless it ends well."""
    command = [sys.executable, *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def wrong_clock(seconds: float) -> dict[str, str]:
    """Return what to add to the environment of a process whose clock is ahead by so many seconds."""
    path = os.pathsep.join([str(CLOCKS), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return {"TASKCLAIM_CHAOS_SHIFT": str(seconds), "PYTHONPATH": path}


class Partner:
    """Runs a module that reads lines and answers with lines of JSON, until the end of the block."""

    def __init__(self, env: Mapping[str, str], module: str, *words: object) -> None:
        self.process: subprocess.Popen[bytes] = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", module, *map(str, words)],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # A line that comes right behind another one stays in the pipe, where it is looked for.
            bufsize=0,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for number in (signal.SIGCONT, signal.SIGKILL):
            self.process.send_signal(number)
        self.process.communicate(timeout=30)

    def heard(self) -> Any:
        """Return what the next line says, which comes within two minutes."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], 120)
        line = self.process.stdout.readline() if ready else b""
        assert line, "the process said nothing"
        return json.loads(line)

    def tell(self, line: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())


def say(answer: Any) -> None:
    """Answer, as a partner does."""
    print(json.dumps(answer), flush=True)
