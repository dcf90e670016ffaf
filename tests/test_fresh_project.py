"""The first minutes in a project of one's own: real processes, Django's own settings, no LOGGING."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import documents

SETTINGS = """
SECRET_KEY = "x"
INSTALLED_APPS = ["django_taskclaim", "shop"]
USE_TZ = True
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": "db.sqlite3",
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;",
        },
    }
}
"""

PLAIN = """
from django.db import models

class Item(models.Model):
    size = models.IntegerField(null=True)
"""

MODELS = """
from django.db import models
from django_taskclaim.models import TaskMixin

class Item(TaskMixin):
    size = models.IntegerField(null=True)

class Page(TaskMixin):
    def process(self):
        print("processed", self.pk)

class Idle(TaskMixin):
    pass
"""

CLAIMS = """
from django_taskclaim import handler
from shop.models import Item

@handler(Item, update_fields=["size"])
def measure(item):
    item.size = 7
"""


class Project:
    """A folder with a project, and what somebody types there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write("settings.py", SETTINGS)
        self.write("shop/__init__.py", "")

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def manage(self, *words: str, code: int = 0) -> str:
        """Run ``manage.py`` and return all that it said."""
        done = self.shell(subprocess.list2cmdline([sys.executable, "-m", "django", *words]))
        assert done.returncode == code, done.stdout
        return done.stdout

    def shell(self, line: str) -> "subprocess.CompletedProcess[str]":
        """Run a line of the shell; what it says on either stream is its output."""
        paths = [str(self.folder), *filter(None, sys.path)]
        env = os.environ | {
            "DJANGO_SETTINGS_MODULE": "settings",
            "PYTHONPATH": os.pathsep.join(paths),
            "COLUMNS": "160",
        }
        return subprocess.run(
            ["bash", "-c", line],
            cwd=self.folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
        )

    def python(self, code: str) -> str:
        return self.manage("shell", "-v", "0", "-c", f"from shop.models import *; {code}")


pytestmark = pytest.mark.processes


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project with two models that have work to do, and one that nobody works on."""
    made = Project(tmp_path)
    made.write("shop/models.py", MODELS)
    made.write("shop/claims.py", CLAIMS)
    made.manage("migrate", "--run-syncdb", "-v", "0")
    return made


# Which models


def test_without_a_name_every_model_with_a_handler_is_served(project: Project) -> None:
    """A registered one, and a ``process()``."""
    project.python("Item().save(); Page().save(); Idle().save()")
    said = project.manage("claimworker", "--drain")
    assert said.startswith("Working on shop.Item, shop.Page in 1 process ")
    states = "print(*(kind.objects.get().status for kind in (Item, Page, Idle)))"
    assert project.python(states).strip() == "complete complete open"


def test_without_any_handler_there_is_one_sentence(project: Project) -> None:
    project.write("shop/claims.py", "")
    project.write("shop/models.py", MODELS.replace("def process", "def progress"))
    said = project.manage("claimworker", code=2)
    assert said == (
        "CommandError: No model has a handler: write one, with @handler(Idle) for example, in the claims.py of an"
        " installed app, or give the model a process() method.\n"
    )
    project.write("shop/models.py", PLAIN)
    assert "No model has a handler: give one the mixin TaskMixin" in project.manage(
        "claimworker", code=2
    )


# Paused rows


def test_a_drain_beside_paused_rows_says_so(project: Project) -> None:
    """A person has set them aside, so the drain has done all it was to do."""
    project.python("Item.objects.bulk_create([Item(status='paused') for _ in range(1200)])")
    said = project.manage("claimworker", "shop.Item", "--drain")
    assert "worker: 0 rows done, 0 failed, 0 held" in said
    assert (
        "1,200 rows of shop.Item are paused and left alone; manage.py claimresume shop.Item --rows opens them"
        in said
    )
    project.manage("claimresume", "shop.Item", "--rows", "--noinput")
    said = project.manage("claimworker", "shop.Item", "--drain")
    assert "worker: 1,200 rows done" in said
    assert "paused" not in said


# Adopting


def test_the_last_lines_of_claimadopt_can_be_copied(project: Project) -> None:
    """In this order, in a project that has never migrated our own app."""
    (project.folder / "db.sqlite3").unlink()
    project.write("shop/claims.py", "")
    project.write("shop/models.py", PLAIN)
    project.manage("makemigrations", "shop")
    project.manage("migrate", "shop", "-v", "0")
    project.python("Item().save()")
    project.write("shop/models.py", MODELS.partition("class Page")[0])
    project.write("shop/claims.py", CLAIMS)
    said = project.manage("claimadopt", "shop.Item")
    steps = [
        line.strip().partition("  ")[0]
        for line in said.partition("Next, in this order:")[2].splitlines()
        if line.strip().startswith("manage.py ")
    ]
    assert steps == [
        "manage.py migrate",
        "manage.py claimresume shop.Item --rows",
        "manage.py claimworker shop.Item",
    ]
    for step in steps[:-1]:
        project.manage(*step.split()[1:])
    assert "worker: 1 row done" in project.manage(*steps[-1].split()[1:], "--drain")


# Pipes

PIPED = ("claimstatus", "claimdoctor", "claimplan --help", "claimstatus --format json")


@pytest.mark.parametrize("command", PIPED)
def test_a_closed_pipe_ends_a_command_quietly(project: Project, command: str) -> None:
    """As ``ls`` ends: by SIGPIPE, which a shell shows as 141; or well, where all was written before."""
    line = f"{sys.executable} -m django {command} | true; echo ${{PIPESTATUS[0]}}"
    assert project.shell(line).stdout in ("141\n", "0\n")


# The page about a table that has rows

PAGE = Path(__file__).resolve().parent.parent / "docs" / "first-queue.md"


def test_the_first_queue_is_as_its_page_tells(project: Project) -> None:
    """Its files and its commands, in its order: rows that are there, the mixin, a handler, a row that fails."""
    (project.folder / "db.sqlite3").unlink()
    before, after, claims = (
        str(block.values[0]) for block in documents.blocks(PAGE.read_text("utf-8"), "python")
    )
    project.write("shop/claims.py", "")
    project.write("shop/models.py", before)
    project.manage("makemigrations", "shop")
    project.manage("migrate", "-v", "0")
    project.python(
        "Invoice.objects.bulk_create([Invoice(text=f'{n} x 4.50') for n in range(200)]);"
        "Invoice.objects.filter(pk=7).update(text='seven, by telephone')"
    )
    project.write("shop/models.py", after)
    project.write("shop/claims.py", claims)
    project.manage("claimadopt", "shop.Invoice")
    project.manage("migrate")
    project.manage("claimresume", "shop.Invoice", "--rows", "--limit", "120", "--noinput")
    said = project.manage("claimworker", "shop.Invoice", "--drain")
    assert "ValueError: not enough values to unpack" in said
    assert "worker: 119 rows done, 1 failed, 0 held" in said
    assert "80 rows of shop.Invoice are paused and left alone" in said
    project.python("Invoice.objects.filter(pk=7).update(text='7 x 1')")
    assert "Reset 1 row" in project.manage("claimreset", "shop.Invoice", "--noinput")
    project.manage("claimresume", "shop.Invoice", "--rows", "--noinput")
    assert "worker: 81 rows done" in project.manage(
        "claimworker", "shop.Invoice", "--drain", "--processes", "1"
    )
