"""The example as a newcomer runs it: its account must add up on every database."""

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from django.db import connection

EXAMPLE = Path(__file__).parent.parent / "example_project"


@pytest.mark.timeout(600)
def test_demo_adds_up_after_a_kill(process_env: dict[str, str], tmp_path: Path) -> None:
    """300 pictures, three workers, one of them killed: nothing is missing and every extra run has its reason."""
    command = demo(process_env, tmp_path, "--rows", "300", "--kill")
    done = subprocess.run(**command, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "missing" in done.stdout
    assert "/admin/photos/photo/control/" in done.stdout


def heed_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_demo_that_stays_serves_its_control_room_until_it_is_told_to_go(
    process_env: dict[str, str], tmp_path: Path, number: signal.Signals
) -> None:
    command = demo(process_env, tmp_path, "--rows", "40", "--workers", "2", "--stay")
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    # Whatever has started the tests may have had Ctrl-C ignored, which processes inherit.
    with subprocess.Popen(**command, **pipes, preexec_fn=heed_ctrl_c) as staying:
        try:
            room = address_told_by(staying)
            with urlopen(room, timeout=120) as answer:
                assert answer.status == 200
                assert answer.url.partition("?")[0].endswith("/admin/login/")
                assert 'name="password"' in answer.read().decode()
            staying.send_signal(number)
            rest, _ = staying.communicate(timeout=120)
        finally:
            staying.kill()
    assert staying.returncode == 0, rest
    assert "Traceback" not in rest
    with pytest.raises(URLError):
        urlopen(room, timeout=30)


def demo(env: dict[str, str], folder: Path, *words: str) -> dict[str, Any]:
    """Return how to run the demo of a fresh copy of the example, as everyone does."""
    project = shutil.copytree(EXAMPLE, folder / "example", ignore=shutil.ignore_patterns("var"))
    env = {name: value for name, value in env.items() if name != "DJANGO_SETTINGS_MODULE"}
    # Python must find the project beside manage.py, as it does for everyone.
    env.pop("PYTHONSAFEPATH", None)
    if connection.vendor == "sqlite":
        env.pop("DATABASE_URL")
    args = [sys.executable, "manage.py", "demo", *words]
    return {"args": args, "cwd": project, "env": env, "text": True}


def address_told_by(staying: "subprocess.Popen[str]") -> str:
    """Return where the control room stays open, once that is said."""
    said = []
    assert staying.stdout is not None
    for line in staying.stdout:
        said.append(line)
        if told := re.search(r"stays open at (http://\S+) until", line):
            return told[1]
    raise AssertionError("".join(said))
