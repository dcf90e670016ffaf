"""What ``manage.py check`` and the worker say of projects whose models, handlers or settings are wrong.

Each mistake is an app of its own, as a newcomer writes it; the apps of a group are one real project and one process.
"""

import pytest

from tests.checks.conftest import MEASURE, PHOTO, Project

pytestmark = [pytest.mark.once, pytest.mark.processes]

PAGE = "class Page(models.Model): pass\n"


def checked(project: Project) -> tuple[dict[str, str], dict[str, str]]:
    """Return the ids and the texts of the checks, by app."""
    ids: dict[str, set[str]] = {}
    texts: dict[str, str] = {}
    for app, number, message, hint in project.checked():
        ids.setdefault(app, set()).add(number)
        texts[app] = f"{texts.get(app, '')}{message} {hint}\n"
    return {app: " ".join(sorted(found)) for app, found in ids.items()}, texts


# Models

OWN_MANAGER = (
    "class Own({base}):\n    def get_queryset(self): {body}\n"
    "class Photo(TaskMixin):\n    objects = Own()"
)

#: The models of an app and the id of what is wrong with them; empty where nothing is.
WRONG_MODELS = {
    "own_column": ("class Photo(TaskMixin):\n    status = models.CharField(max_length=9)", "E005"),
    "own_method": ("class Photo(TaskMixin):\n    def last_error(self): ...", "E005"),
    "column_removed": ("class Photo(TaskMixin):\n    iteration = None", "E005"),
    "status_of_parent": (
        "class Page(models.Model):\n    status = models.IntegerField()\nclass Photo(Page, TaskMixin): ...",
        "E005",
    ),
    "range_status": (
        PAGE + "class Photo(RangeMixin, TaskMixin):\n    source = Page\n    status = 3",
        "E005",
    ),
    "method_claim": ("class Photo(TaskMixin):\n    def claim(self): ...", "E004"),
    "fields_list": ("class Photo(TaskMixin):\n    claim_fields = ['status']", "E005"),
    "fields_foreign": (
        "class Photo(TaskMixin):\n    title = models.CharField(max_length=5)\n"
        "    claim_fields = {'expires_at': 'title', 'holder': 'x'}",
        "E005",
    ),
    "range_bare": (PAGE + "class Photo(RangeMixin, models.Model):\n    source = Page", "E005"),
    "two_tables": ("class Page(ClaimMixin): ...\nclass Photo(Page, CompletedAtMixin): ...", "E005"),
    "two_queues": ("class Page(TaskMixin): ...\nclass Photo(PrefixedTaskMixin, Page): ...", "E005"),
    "no_link": ("class Photo(SourceMixin, TaskMixin):\n    source = 3", "E061"),
    "plain_manager": ("class Photo(TaskMixin):\n    objects = models.Manager()", "E002"),
    "plain_rows": (
        OWN_MANAGER.format(base="ClaimManager", body="return models.QuerySet(self.model)"),
        "E002",
    ),
    "raising": (OWN_MANAGER.format(base="models.Manager", body="raise RuntimeError"), "E002"),
    "raising_ours": (OWN_MANAGER.format(base="ClaimManager", body="raise RuntimeError"), ""),
    "from_queryset": (
        "class Own(ClaimQuerySet): ...\nclass Photo(TaskMixin):\n"
        "    objects = ClaimManager.from_queryset(Own)()",
        "",
    ),
    "free_names": (
        "class Photo(ClaimMixin):\n    attempts = models.CharField(max_length=5)\n"
        "    complete = models.BooleanField(default=False)",
        "",
    ),
    "prefixed": (
        "class Photo(PrefixedTaskMixin):\n    status = models.CharField(max_length=5)\n"
        "    priority = models.CharField(max_length=5)",
        "",
    ),
    "not_ours": (PAGE + PHOTO, ""),
}


def test_wrong_models_are_reported_and_right_ones_are_not(project: Project) -> None:
    for name, (models, _) in WRONG_MODELS.items():
        project.add(name, models, MEASURE)
    ids, texts = checked(project)
    assert ids == {name: number for name, (_, number) in WRONG_MODELS.items() if number}
    assert "has no claim column named status" in texts["own_column"]
    assert "class Photo(PrefixedTaskMixin):" in texts["own_column"]
    assert "objects = ClaimManager()" in texts["plain_manager"]


# Settings

EVERY_SETTING = """
import json
from django.conf import settings
from django.core.checks import run_checks
from django_taskclaim.checks import TAG
from django_taskclaim.conf import DEFAULTS

def found(value):
    settings.TASKCLAIM = value
    # Django's own checks do not read it.
    ours = [one for tag in (TAG, "database") for one in run_checks(tags=[tag], databases=["default"])]
    messages = [one for one in ours if one.id.startswith("taskclaim")]
    assert all(one.hint for one in messages)
    return [one.id[10:] + " " + one.msg for one in messages]

wrong = {wrong}
said = {{f"{{key}} = {{text}}": found({{key: eval(text)}}) for key in DEFAULTS for text in wrong}}
for text in [*wrong, "'LEASE=3'", "[('LEASE', 3)]", "{{'LAESE': 3}}"]:
    said[text] = found(eval(text))
right = [{{"LEASE": text, "TIMEOUT": text}} for text in ("30", "90s", "5m")]
print("ANSWER", json.dumps([said, [found(value) for value in right]]))
"""

NEVER = ["object()", "-1", "float('nan')", "float('inf')", "[3]", "{'no': 1}", "b'x'", "'   '"]
#: What some settings take.
TAKEN = {"REDACT = None", "METRICS_TOKEN = None", "BREAKER = None", "TIMEOUT = None"}
TAKEN |= {"STORE_TRACEBACK = True", "RETRIES = 0", "FIXTURES_WRITE_CLAIMS = True"}


def test_every_setting_with_every_wrong_value_is_reported(project: Project) -> None:
    """No value is a traceback; a duration may be written as on the command line."""
    project.add("photos", PHOTO, MEASURE)
    wrong = [*NEVER, "None", "True", "'soon'", "0"]
    said, right = project.answer(EVERY_SETTING.format(wrong=wrong))
    for case, messages in said.items():
        assert all(one.startswith(("E001", "E013")) for one in messages), case
        assert bool(messages) != (case in TAKEN), (case, messages)
    assert right == [[]] * 3


@pytest.mark.promise(14)
def test_commands_that_check_first_end_with_the_id_and_its_hint(project: Project) -> None:
    """A wrong setting and a wrong model at once: each is reported, and nothing is a traceback.

    Without the app the mixin says where to add it.
    """
    project.add("photos", WRONG_MODELS["own_column"][0])
    project.configure("TASKCLAIM = None")
    assert (
        "(taskclaim.E001) TASKCLAIM must be a dictionary, not None" in project.run("check").stdout
    )
    project.configure("TASKCLAIM = {'LEASE': -1}")
    answer = project.run("migrate", "--run-syncdb")
    assert answer.returncode == 1
    assert "Traceback" not in answer.stdout
    for part in (
        "(taskclaim.E001) TASKCLAIM['LEASE'] must be a time in seconds",
        'HINT: TASKCLAIM = {"LEASE": 60.0}',
        "photos.Photo: (taskclaim.E005)",
    ):
        assert part in answer.stdout
    project.configure("INSTALLED_APPS.remove('django_taskclaim')")
    answer = project.run("check")
    assert "Add 'django_taskclaim' to INSTALLED_APPS" in answer.stdout.splitlines()[-1]
