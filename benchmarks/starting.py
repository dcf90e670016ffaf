"""How long a project takes to start: ``django.setup()`` with this app, beside projects without it.

    python -m benchmarks.starting --rounds 30

Each round starts each project once, in a new order, in a process of its own, which tells how long it took from before
``import django`` until ``django.setup()`` returned. Printed are medians, so a disturbed start counts little; bytecode
is written before the first round that counts. The database is a SQLite file that is never opened: ``DATABASE_URL`` is
not asked.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.database import HOME

#: What is in INSTALLED_APPS, by what people call the project. The names without dots are those of APPS.
PROJECTS = {
    "an app without models": ["without_models"],
    "an app as startapp makes it": ["started"],
    "django_taskclaim alone": ["django_taskclaim"],
    "an app with one model": ["one_model"],
    "django_taskclaim, and an app with one model, which has a handler": [
        "django_taskclaim",
        "task",
    ],
}

#: Files by the app, and their text.
APPS = {
    "without_models": {},
    "started": {"models.py": "from django.db import models\n"},
    "one_model": {
        "models.py": """
from django.db import models

class Photo(models.Model):
    width = models.IntegerField(null=True)
"""
    },
    "task": {
        "models.py": """
from django.db import models
from django_taskclaim.models import TaskMixin

class Photo(TaskMixin):
    width = models.IntegerField(null=True)
""",
        "claims.py": """
from django_taskclaim import handler
from task.models import Photo

@handler(Photo)
def measure(photo):
    pass
""",
    },
}

START = """
import sys, time
started = time.perf_counter()
import django
from django.conf import settings

database = {"ENGINE": "django.db.backends.sqlite3", "NAME": "never-opened.sqlite3"}
settings.configure(INSTALLED_APPS=sys.argv[1:], DATABASES={"default": database})
if "django_taskclaim" in sys.argv:
    import django_taskclaim
django.setup()
seconds = time.perf_counter() - started
print(seconds, sum(name.split(".")[0] == "django_taskclaim" for name in sys.modules))
"""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.starting")
    parser.add_argument("--rounds", type=int, default=30, help="starts of each project (30)")
    return parser.parse_args()


def main(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as directory:
        write_apps(Path(directory))
        modules = {name: start(apps, directory)[1] for name, apps in PROJECTS.items()}
        seconds: dict[str, list[float]] = {name: [] for name in PROJECTS}
        for _ in range(options.rounds):
            for name in random.sample(list(PROJECTS), len(PROJECTS)):
                seconds[name].append(start(PROJECTS[name], directory)[0])
    for name, taken in seconds.items():
        ours = f", {modules[name]} modules of ours" if modules[name] else ""
        sys.stdout.write(f"{1000 * statistics.median(taken):6.1f} ms  {name}{ours}\n")


def write_apps(directory: Path) -> None:
    for app, files in APPS.items():
        (directory / app).mkdir()
        for name, text in {"__init__.py": "", **files}.items():
            (directory / app / name).write_text(text)


def start(apps: Sequence[str], directory: str) -> tuple[float, int]:
    """Start a project; return its seconds, and how many modules of this package it has loaded."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HOME), directory])}
    # Bytecode is what counts, and the checkout is no place for it.
    environment |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": directory}
    told = subprocess.check_output(
        [sys.executable, "-c", START, *apps], cwd=directory, env=environment, text=True
    )
    seconds, modules = told.split()
    return float(seconds), int(modules)


if __name__ == "__main__":
    main(arguments())
