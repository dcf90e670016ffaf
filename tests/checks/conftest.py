"""Projects of many apps, each with one mistake: one process checks them all."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests import projects

PHOTO = "class Photo(TaskMixin):\n    width = models.IntegerField(null=True)\n"
MEASURE = "@handler(Photo)\ndef measure(photo): print('measured')\n"

#: Prints of each message of the checks the app that it names, its id, its text and its hint.
CHECK = """
import json, re
from django.apps import apps
from django.core.checks import run_checks
labels = {one.label for one in apps.get_app_configs()} - {"taskclaim"}
found = [m for m in run_checks() if m.id.startswith("taskclaim.")]
app = lambda m: next(w for w in re.findall(r"[a-z_]+", f"{m.obj} {m.msg}") if w in labels)
print("ANSWER", json.dumps([(app(m), m.id[10:], m.msg, m.hint) for m in found]))
"""


class Project(projects.Project):
    """A project of many apps."""

    def add(self, app: str, models: str, claims: str = "") -> None:
        """Add an app with these models and handlers."""
        self.write(f"{app}/__init__.py", "")
        self.write_models(app, models)
        self.write(f"{app}/claims.py", projects.CLAIMS.replace("shop", app), claims)
        self.configure(f"INSTALLED_APPS.append({app!r})")

    def write_models(self, app: str, models: str) -> None:
        self.write(f"{app}/models.py", projects.MODELS, models, "\n")

    def configure(self, lines: str) -> None:
        """Add lines to the settings."""
        conf = self.where / "conf.py"
        conf.write_text(f"{conf.read_text()}\n{lines}\n")

    def answer(self, script: str) -> Any:
        """Run a script in a process of the project, and return what it prints last, as JSON."""
        self.write("ask.py", script)
        run = self.run("shell", "--verbosity", "0", "--command", "import ask")
        assert "ANSWER " in run.stdout, run.stdout[-3000:]
        return json.loads(run.stdout.rpartition("ANSWER ")[2])

    def checked(self) -> list[tuple[str, str, str, str]]:
        """Return app, id, message and hint of all that the checks find; every message has a hint."""
        found = [tuple(one) for one in self.answer(CHECK)]
        assert all(hint for *_, hint in found)
        return found


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project", "")
