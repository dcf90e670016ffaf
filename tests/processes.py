"""Python in a process of its own."""

import subprocess
import sys


def output_of(*words: str, env: dict[str, str]) -> str:
    """Run Python with these words, and return what it said; fail unless it ends well."""
    command = [sys.executable, *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
