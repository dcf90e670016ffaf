"""Small projects of one app, written to a directory and run by commands of their own processes."""

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent

SETTINGS = """
SECRET_KEY = "a small project"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.auth", "django.contrib.contenttypes", "django_taskclaim",
    "django_taskclaim.control", "shop"]
DATABASES = {{"default": {{
    "ENGINE": "django.db.backends.sqlite3", "NAME": {database!r}, "OPTIONS": {{"transaction_mode": "IMMEDIATE"}}
}}}}
"""

MODELS = """
from django.db import models
from django_taskclaim import handler
from django_taskclaim.models import *
from django_taskclaim.querysets import *

"""

CLAIMS = """
from django_taskclaim import handler
from shop.models import *

"""


@dataclass
class Project:
    """A project with the app ``shop``, whose models and handlers may be wrong."""

    where: Path
    models: str
    claims: str = ""
    settings: str = ""
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        app = self.where / "shop"
        app.mkdir(parents=True)
        (app / "__init__.py").touch()
        self.write("shop/models.py", MODELS, self.models)
        self.write("shop/claims.py", CLAIMS, self.claims)
        database = str(self.where / "db.sqlite3")
        self.write("conf.py", SETTINGS.format(database=database), self.settings)

    def write(self, name: str, *parts: str) -> None:
        """Write a file of the project, or replace it."""
        path = self.where / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(dedent(part) for part in parts))

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start ``manage.py`` with these words; what it says comes by ``stdout``."""
        path = os.pathsep.join([str(self.where), *filter(None, sys.path)])
        environment = {
            "DJANGO_SETTINGS_MODULE": "conf",
            "PYTHONPATH": path,
            "PYTHONUNBUFFERED": "1",
        }
        return subprocess.Popen(
            [sys.executable, "-m", "django", *words],
            env={**os.environ, **environment, **self.env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.where,
        )

    def run(self, *words: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """Run ``manage.py`` with these words, and return its exit code and all that it said."""
        with self.start(*words) as process:
            try:
                said, _ = process.communicate(timeout=timeout)
            finally:
                process.kill()
        return subprocess.CompletedProcess(words, process.returncode, said)
