"""The example as a newcomer runs it: its account must add up on every database."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from django.db import connection

EXAMPLE = Path(__file__).parent.parent / "example_project"


@pytest.mark.timeout(600)
def test_demo_adds_up_after_a_kill(process_env: dict[str, str], tmp_path: Path) -> None:
    """300 pictures, three workers, one of them killed: nothing is missing and every extra run has its reason."""
    project = shutil.copytree(EXAMPLE, tmp_path / "example", ignore=shutil.ignore_patterns("var"))
    env = {name: value for name, value in process_env.items() if name != "DJANGO_SETTINGS_MODULE"}
    # Python must find the project beside manage.py, as it does for everyone.
    env.pop("PYTHONSAFEPATH", None)
    if connection.vendor == "sqlite":
        env.pop("DATABASE_URL")
    words = [sys.executable, "manage.py", "demo", "--rows", "300", "--kill"]
    demo = subprocess.run(words, cwd=project, env=env, capture_output=True, text=True, check=False)
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert "missing" in demo.stdout
    assert "/admin/photos/photo/control/" in demo.stdout
