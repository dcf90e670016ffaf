"""A worker that cannot work ends with a sentence."""

import pytest

from tests.checks.conftest import MEASURE, PHOTO, Project

pytestmark = [pytest.mark.once, pytest.mark.processes]

#: Tells how ``claimworker`` ended, and what it printed.
ENDED = """
import contextlib, io, json, traceback
from django.conf import settings
from django.core.management import CommandError, call_command
from django.db import connection

def ended(*words):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            call_command(*words)
            code = 0
        except CommandError as error:
            code = error.returncode
            print(error)
        except SystemExit as error:
            code = error.code
        except Exception:
            code = "Traceback"
            traceback.print_exc()
    return code, out.getvalue()

def worked(label):
    return ended("claimworker", label, "--in-process", "--drain")

def execute(statement):
    with connection.cursor() as cursor:
        cursor.execute(statement)
"""

WORKERS = """
from django.apps import apps

call_command("migrate", "--run-syncdb", "--skip-checks", verbosity=0)
execute('ALTER TABLE capitals_photo RENAME COLUMN "Width" TO "width"')
said = {}
for app in NAMES:
    settings.SILENCED_SYSTEM_CHECKS = ["taskclaim.E002"] if app == "silenced" else []
    models = [model for model in apps.get_app_config(app).get_models() if model.__name__ != "Page"]
    if not app.startswith("no_"):
        for model in models:
            model._base_manager.create()
    said[app] = worked(f"{app}.Photo")
said["all"] = ended("claimworker", "--in-process", "--drain")
settings.TASKCLAIM = {"LEASE": "soon"}
said["setting"] = worked("right.Photo")
print("ANSWER", json.dumps(said))
"""

FUNCTION = "\ndef measure(photo): print('measured')\n"

#: The models, the handlers, the exit code, and a part of what is printed.
PROJECTS = {
    "no_handler": (PHOTO, "", 2, "no_handler.Photo has no handler"),
    "no_column": (
        "class Photo(TaskMixin):\n    status = models.IntegerField()",
        MEASURE,
        # From a shell it is 2; call_command() gives every wrong word 1.
        1,
        "has no claim column named status",
    ),
    "no_verbs": (
        "class Photo(TaskMixin):\n    objects = models.Manager()",
        MEASURE,
        2,
        "objects = ClaimManager()",
    ),
    "right": (PHOTO + "    def process(self): print('processed')", MEASURE, 0, "measured\n"),
    "capitals": (
        PHOTO.replace("null=True", "null=True, db_column='Width'"),
        MEASURE,
        0,
        "measured\n",
    ),
    "silenced": (
        "class Photo(TaskMixin):\n    objects, claims = models.Manager(), ClaimManager()",
        "@handler(Photo, queryset=Photo.claims.all())" + FUNCTION,
        0,
        "measured\n",
    ),
}


@pytest.mark.promise(14)
def test_a_worker_that_cannot_work_ends_with_a_sentence(project: Project) -> None:
    """The same project's sound models are worked on; a handler goes before a method ``process``."""
    for app, (models, claims, _, _) in PROJECTS.items():
        project.add(app, models, claims)
    said = project.answer(ENDED + f"NAMES = {list(PROJECTS)}\n" + WORKERS)
    for app, (_, _, code, part) in PROJECTS.items():
        assert said[app][0] == code, (app, said[app])
        assert part in said[app][1], (app, said[app])
    assert said["right"][1] == "measured\n"
    assert said["all"][0] == said["setting"][0] == 2
    assert "no_column.Photo has no claim column named status" in said["all"][1]
    assert "TASKCLAIM['LEASE'] must be" in said["setting"][1]
