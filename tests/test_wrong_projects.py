"""What ``manage.py check`` says of a project whose settings, models or handlers are wrong: never a traceback.

Every case is a project of its own and a process of its own, as a newcomer meets it.
"""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.projects import MODELS as MODELS_HEAD
from tests.projects import Project

pytestmark = pytest.mark.processes

PHOTO = """
class Photo(TaskMixin):
    width = models.IntegerField(null=True)
"""

MEASURE = """
@handler(Photo)
def measure(photo):
    print("measured")
"""

#: What no setting takes, in Python, for a project's settings.
NEVER = ["object()", "-1", "float('nan')", "float('inf')", "[3]", "{'no': 1}", "b'x'", "'   '"]


EVERY_SETTING = """
import json
from django.conf import settings
from django.core.checks import run_checks
from django.core.management import call_command
from django_taskclaim.conf import DEFAULTS

def found():
    messages = [one for one in run_checks(databases=["default"]) if one.id.startswith("taskclaim")]
    assert all(one.hint for one in messages)
    return [one.id + " " + one.msg for one in messages]

values = {values}
said = {{}}
for key in DEFAULTS:
    for text in values:
        settings.TASKCLAIM = {{key: eval(text)}}
        said[f"{{key}} = {{text}}"] = found()
for text in values + ["None", "'LEASE=3'", "[('LEASE', 3)]"]:
    settings.TASKCLAIM = eval(text)
    said[text] = found()
print("SAID", json.dumps(said))
"""


@pytest.fixture
def project(tmp_path: Path) -> Any:
    def make(models: str = PHOTO, claims: str = MEASURE, settings: str = "") -> Project:
        return Project(tmp_path / "project", models, claims, settings)

    return make


def test_no_value_of_any_setting_is_a_traceback(project: Any) -> None:
    """Every key with every wrong type, and the dictionary itself."""
    made = project()
    made.write("ask.py", EVERY_SETTING.format(values=[*NEVER, "None", "True", "'soon'", "0"]))
    answer = made.run("shell", "--verbosity", "0", "--command", "import ask")
    assert "SAID" in answer.stdout, answer.stdout[-3000:]
    said: dict[str, list[str]] = json.loads(answer.stdout.rpartition("SAID ")[2])
    ignored = {"REDACT = None", "BREAKER = None", "TIMEOUT = None", "STORE_TRACEBACK = True"}
    ignored |= {"RETRIES = 0", "HEALTH_CHECKS = ()", "HISTORY = ()"}
    ignored |= {"FAIL_UNSAVED = None", "FAIL_UNSAVED = True", "FIXTURES_WRITE_CLAIMS = True"}
    for case, messages in said.items():
        assert all(one.startswith(("taskclaim.E001", "taskclaim.E013")) for one in messages), case
        assert bool(messages) != (case in ignored), (case, messages)


@pytest.mark.parametrize("value", ["None", "[]", "'LEASE'", "dict(HISTORY=3, LEASE=-1, REDACT=[])"])
def test_a_project_starts_with_wrong_settings_and_is_told(project: Any, value: str) -> None:
    answer = project(settings=f"TASKCLAIM = {value}").run("check")
    assert_told(answer, "E001")


@pytest.mark.parametrize("value", ["30", "90s", "5m", "1.5"])
def test_a_duration_may_be_a_text_as_on_the_command_line(project: Any, value: str) -> None:
    made = project(settings=f"TASKCLAIM = {{'LEASE': {value!r}, 'TIMEOUT': {value!r}}}")
    answer = made.run("check")
    assert answer.returncode == 0, answer.stdout


OWN_STATUS = """
class Photo(TaskMixin):
    status = models.CharField(max_length=9)
"""

#: What is wrong with the models, and the id under which ``check`` reports it; empty where nothing is.
MODELS = {
    "own status": (OWN_STATUS, "E003"),
    "own property": (
        "class Photo(TaskMixin):\n    claimed_by = property(lambda self: 'me')",
        "E003",
    ),
    "column removed": ("class Photo(TaskMixin):\n    iteration = None", "E003"),
    "own method claim": ("class Photo(TaskMixin):\n    def claim(self): ...", "E004"),
    "own column claim": ("class Photo(TaskMixin):\n    claim = models.IntegerField()", "E004"),
    "claim_fields None": ("class Photo(TaskMixin):\n    claim_fields = None", "E005"),
    "claim_fields list": ("class Photo(TaskMixin):\n    claim_fields = ['status']", "E005"),
    "claim_fields text": ("class Photo(TaskMixin):\n    claim_fields = 'status'", "E005"),
    "claim_fields of lists": (
        "class Photo(TaskMixin):\n    claim_fields = {'status': ['x'], 1: 2}",
        "E005",
    ),
    "claim_fields astray": ("class Photo(TaskMixin):\n    claim_fields = {'status': 'x'}", "E005"),
    "no mixin": ("class Photo(models.Model): pass", "E014"),
    "half a mixin": ("class Photo(RetryMixin): pass", "E014"),
    "abstract": (
        "class Photo(TaskMixin):\n    class Meta:\n        abstract = True\nclass Big(Photo): pass",
        "E014",
    ),
    "range with own status": (
        "class Page(models.Model): pass\nclass Photo(RangeMixin, TaskMixin):\n    source = Page\n    status = 3",
        "E003",
    ),
    "range without columns": (
        "class Page(models.Model): pass\nclass Photo(RangeMixin, models.Model):\n    source = Page",
        "E005",
    ),
    "companion with own status": (
        "class Page(models.Model): pass\nclass Photo(SourceMixin, TaskMixin):\n"
        "    source = models.OneToOneField(Page, models.DO_NOTHING)\n    status = 3",
        "E003",
    ),
    "companion without a link": ("class Photo(SourceMixin, TaskMixin):\n    source = 3", "E061"),
    "status of a parent": (
        "class Page(models.Model):\n    status = models.IntegerField()\nclass Photo(Page, TaskMixin): pass",
        "E003",
    ),
    "no manager": ("class Photo(TaskMixin):\n    objects = None", ""),
    "plain manager": ("class Photo(TaskMixin):\n    objects = models.Manager()", "E002"),
    "manager that raises": (
        "class Own(models.Manager):\n    def get_queryset(self): raise RuntimeError('no tenant')\n"
        "class Photo(TaskMixin):\n    objects = Own()",
        "E002",
    ),
    "manager of ours that raises": (
        "class Own(ClaimManager):\n    def get_queryset(self): raise RuntimeError('no tenant')\n"
        "class Photo(TaskMixin):\n    objects = Own()",
        "",
    ),
    "manager of ours that returns plain rows": (
        "class Own(ClaimManager):\n    def get_queryset(self): return models.QuerySet(self.model)\n"
        "class Photo(TaskMixin):\n    objects = Own()",
        "E002",
    ),
    "manager that returns nothing": (
        "class Own(ClaimManager):\n    def get_queryset(self): return None\n"
        "class Photo(TaskMixin):\n    objects = Own()",
        "E002",
    ),
    "manager of another kind that returns our rows": (
        "class Own(models.Manager):\n    def get_queryset(self): return ClaimQuerySet(self.model, using=self._db)\n"
        "class Photo(TaskMixin):\n    objects = Own()",
        "",
    ),
}


def assert_told(answer: Any, number: str) -> None:
    """Assert that the command found this and nothing else of this package, or that it found nothing."""
    assert "Traceback" not in answer.stdout, answer.stdout
    found = {part[:4] for part in answer.stdout.split("(taskclaim.")[1:]}
    assert found == ({number} if number else set()), answer.stdout
    assert answer.stdout.count("HINT: ") >= len(found)
    assert answer.returncode == (1 if number.startswith("E") else 0), answer.stdout


@pytest.mark.parametrize(("models", "number"), MODELS.values(), ids=MODELS.keys())
def test_no_model_is_a_traceback(project: Any, models: str, number: str) -> None:
    assert_told(project(models + "\n").run("check"), number)


#: What is wrong with the lines above the function, the id, and a part of the sentence.
HANDLERS = {
    "no parentheses": ("@handler", "E014", "shop.claims.measure (line 5) is not registered"),
    "no model": ("@handler()", "E014", "The model is missing. Write @handler(Photo)"),
    "None": ("@handler(None)", "E014", "The model is missing"),
    "label": ("@handler('shop.Photo')", "", ""),
    "label in lower case": ("@handler('shop.photo')", "", ""),
    "unknown label": ("@handler('shop.Foto')", "E014", "Did you mean 'shop.Photo'?"),
    "label without an app": ("@handler('Photo')", "E014", "Did you mean 'shop.Photo'?"),
    "instance": ("@handler(Photo())", "E014", "takes a model, such as Photo"),
    "manager": ("@handler(Photo.objects)", "E014", "takes a model, such as Photo"),
    "unknown option": ("@handler(Photo, batchsize=3)", "E014", "argument 'batchsize'"),
    "batch size": ("@handler(Photo, batch_size='3')", "E014", "batch_size must be a whole number"),
    "tries": ("@handler(Photo, max_attempts='3')", "E014", "max_attempts must be a whole number"),
    "concurrency": ("@handler(Photo, concurrency=[])", "E014", "concurrency must be a whole"),
    "lease": ("@handler(Photo, lease='soon')", "E014", "lease must be seconds"),
    "names": ("@handler(Photo, update_fields=[3])", "E014", "update_fields is a list of names"),
    "no names": ("@handler(Photo, update_fields=None)", "E014", "update_fields is a list of names"),
    "health": ("@handler(Photo, health_checks=3)", "E014", "health_checks is a list"),
    "completion": ("@handler(Photo, completion='x')", "E014", "completion must be"),
    "archive": (
        "from django_taskclaim.completion import Archive\n@handler(Photo, completion=Archive('xy'))",
        "E051",
        "no installed model is called 'xy'",
    ),
    "slice": ("@handler(Photo, queryset=Photo.objects.all()[:3])", "E010", "through a slice"),
    "two": (
        "@handler(Photo)\ndef other(photo): ...\n@handler(Photo)",
        "E014",
        "shop.Photo has the handler shop.claims.other; shop.claims.measure is a second one",
    ),
}


@pytest.mark.parametrize(("lines", "number", "said"), HANDLERS.values(), ids=HANDLERS.keys())
def test_no_handler_is_a_traceback(project: Any, lines: str, number: str, said: str) -> None:
    answer = project(claims=lines + "\ndef measure(photo): ...\n").run("check")
    assert_told(answer, number)
    assert said in answer.stdout


def test_a_router_that_names_no_database_is_told(project: Any) -> None:
    router = (
        "class Astray:\n    def db_for_write(self, model, **hints): return 'nowhere'\n"
        "DATABASE_ROUTERS = [Astray()]\n"
    )
    answer = project(settings=router).run("check")
    assert_told(answer, "E006")
    assert "writes shop.Photo to the database 'nowhere'" in answer.stdout


@pytest.mark.parametrize(
    "command", [["migrate", "--run-syncdb"], ["check", "--database", "default"]]
)
def test_commands_that_check_first_report_it_too(project: Any, command: list[str]) -> None:
    answer = project(OWN_STATUS).run(*command)
    assert_told(answer, "E003")


def test_a_web_process_starts_and_claims_nothing_of_that_model(project: Any) -> None:
    """Nobody knows the rules of its claims, so nothing is claimed by others; other models go on."""
    models = PHOTO + "class Text(TaskMixin): pass\n"
    made = project(models, "@handler(Photo, batch_size='3')\ndef measure(photo): ...\n")
    made.write(
        "act.py",
        """
        from shop.models import Photo, Text
        print("texts", Text.objects.claim_batch(1))
        try:
            Photo.objects.claim_batch(1)
        except Exception as error:
            print(type(error).__name__, error)
        """,
    )
    made.run("migrate", "--run-syncdb", "--skip-checks")
    answer = made.run("shell", "--verbosity", "0", "--command", "import act")
    assert "texts []" in answer.stdout, answer.stdout
    assert "ImproperlyConfigured shop.claims.measure (line 5) is not registered" in answer.stdout


CHILD = PHOTO + "class Big(Photo):\n    height = models.IntegerField(null=True)\n"
PROXY = PHOTO + "class Big(Photo):\n    class Meta:\n        proxy = True\n"
ENLARGE = "@handler(Big)\ndef enlarge(photo):\n    print('enlarged')\n"


@pytest.mark.parametrize("models", [CHILD, PROXY], ids=["child", "proxy"])
def test_two_handlers_of_the_same_rows_are_a_warning(project: Any, models: str) -> None:
    answer = project(models, MEASURE + ENLARGE).run("check")
    assert_told(answer, "W011")
    assert "shop.claims.measure takes rows of shop.Photo, and shop.claims.enlarge" in answer.stdout


def test_the_hint_of_that_warning_tells_the_rows_apart(project: Any) -> None:
    apart = MEASURE.replace("Photo", "Photo, queryset=Photo.objects.filter(big=None)")
    made = project(CHILD, apart + ENLARGE)
    assert_told(made.run("check"), "")
    made.write("fill.py", "from shop.models import *; Photo.objects.create(); Big.objects.create()")
    made.run("migrate", "--run-syncdb")
    made.run("shell", "--command", "import fill")
    answer = made.run("claimworker", "shop.Photo", "shop.Big", "--in-process", "--drain")
    assert sorted(answer.stdout.split()) == ["enlarged", "measured"], answer.stdout


def test_a_handler_goes_before_a_method_process(project: Any) -> None:
    models = PHOTO + "    def process(self):\n        print('processed')\n"
    made = project(models)
    made.write("fill.py", "from shop.models import *; Photo.objects.create()")
    assert_told(made.run("migrate", "--run-syncdb"), "")
    made.run("shell", "--command", "import fill")
    answer = made.run("claimworker", "shop.Photo", "--in-process", "--drain")
    assert answer.stdout.split() == ["measured"]


def test_a_method_process_that_takes_more_is_no_handler(project: Any) -> None:
    made = project(PHOTO + "    def process(self, payment): ...\n", "")
    made.run("migrate", "--run-syncdb")
    answer = made.run("claimworker", "shop.Photo", "--in-process", "--drain")
    assert answer.returncode == 2
    assert "shop.Photo has no handler" in answer.stdout


# Workers that cannot work

#: The models, the lines above the function, settings, and a part of the sentence.
IDLE = {
    "a setting": (PHOTO, "@handler(Photo)", "TASKCLAIM = {'POLL': 'soon'}", "TASKCLAIM['POLL'] is"),
    "no handler": (PHOTO, "", "", "shop.Photo has no handler: write one with @handler(Photo)"),
    "a wrong option": (PHOTO, "@handler(Photo, rate=3)", "", "rate is a number of rows"),
    "a second handler": (
        PHOTO,
        "@handler(Photo)\ndef other(photo): ...\n@handler(Photo)",
        "",
        "is a second one",
    ),
    "a manager": (
        "class Photo(TaskMixin):\n    objects = models.Manager()\n",
        "@handler(Photo)",
        "",
        "objects = ClaimManager()",
    ),
    "a manager that raises": (
        "class Own(ClaimManager):\n    def get_queryset(self): raise RuntimeError('no tenant')\n"
        "class Photo(TaskMixin):\n    objects = Own()\n",
        "@handler(Photo)",
        "",
        "get_queryset() of shop.Photo raised RuntimeError: no tenant",
    ),
    "an archive": (
        PHOTO,
        "from django_taskclaim.completion import Archive\n@handler(Photo, completion=Archive('x.Y'))",
        "",
        "no installed model is called 'x.Y'",
    ),
}


@pytest.mark.parametrize(("models", "lines", "settings", "said"), IDLE.values(), ids=IDLE.keys())
def test_a_worker_that_cannot_work_ends_with_a_sentence(
    project: Any, models: str, lines: str, settings: str, said: str
) -> None:
    made = project(models, f"{lines}\ndef measure(photo): ...\n", settings)
    made.run("migrate", "--run-syncdb", "--skip-checks")
    answer = made.run("claimworker", "shop.Photo")
    assert answer.returncode == 2, answer.stdout
    assert said in answer.stdout
    assert "Traceback" not in answer.stdout


def test_a_manager_that_needs_rows_of_a_migration_is_asked_after_it(project: Any) -> None:
    """A worker waits for pending migrations first; only then has what a queryset looks up to be there."""
    made = project(
        """
        class Site(models.Model): pass
        class Own(ClaimManager):
            def get_queryset(self):
                return super().get_queryset().exclude(pk=-Site.objects.get().pk)
        class Photo(TaskMixin):
            objects = Own()
        """,
        MEASURE,
    )
    made.run("makemigrations", "shop")
    made.run("migrate")
    made.write(
        "shop/migrations/0002_site.py",
        """
        from django.db import migrations
        class Migration(migrations.Migration):
            dependencies = [("shop", "0001_initial")]
            operations = [migrations.RunPython(lambda apps, _: apps.get_model("shop", "Site").objects.create())]
        """,
    )
    worker = made.start("claimworker", "shop.Photo", "--drain", "--in-process")
    assert worker.stdout is not None
    assert "Waiting for migrations of 'default': shop.0002_site" in worker.stdout.readline()
    assert made.run("migrate").returncode == 0
    assert "CommandError" not in worker.communicate(timeout=60)[0]
    assert worker.returncode == 0


def test_a_silenced_check_ends_no_worker(project: Any) -> None:
    """Somebody has looked at it: here the handler's own queryset has the verbs that the default manager lacks."""
    made = project(
        "class Photo(TaskMixin):\n    objects, claims = models.Manager(), ClaimManager()\n",
        "@handler(Photo, queryset=Photo.claims.all())\ndef measure(photo): print('measured')\n",
        "SILENCED_SYSTEM_CHECKS = ['taskclaim.E002']\n",
    )
    made.run("migrate", "--run-syncdb")
    made.write("ask.py", "from shop.models import Photo\nPhoto.objects.create()\n")
    made.run("shell", "--verbosity", "0", "--command", "import ask")
    answer = made.run("claimworker", "--drain", "--in-process")
    assert (answer.returncode, answer.stdout) == (0, "measured\n")


FORGOTTEN = "manage.py makemigrations shop, then manage.py migrate shop --database default"


def test_a_forgotten_migration_is_told(project: Any) -> None:
    """A table, claim columns, or a column of the user is missing, in an app with migrations or without."""
    made = project("class Photo(models.Model): pass\n", "")
    made.run("migrate")

    made.write("shop/models.py", MODELS_HEAD, PHOTO)
    made.write(
        "shop/claims.py",
        "from django_taskclaim import handler\n@handler('shop.Photo')\ndef measure(row): ...\n",
    )
    no_table = f"CommandError: The database 'default' has no table shop_photo for shop.Photo. Run: {FORGOTTEN}"
    worker, look = made.run("claimworker", "shop.Photo"), made.run("claimstatus", "shop.Photo")
    assert (worker.returncode, look.returncode) == (2, 1)
    assert worker.stdout.startswith(no_table)
    assert look.stdout.startswith(no_table)
    made.write("ask.py", "from shop.models import Photo\nPhoto.objects.claim_batch(1)\n")
    verb = made.run("shell", "--verbosity", "0", "--command", "import ask").stdout
    assert "Run manage.py makemigrations shop, then manage.py migrate shop." in verb
    assert made.run("makemigrations", "shop").returncode == 0
    # Now there is one, and it waits to be run.
    look = made.run("claimstatus", "shop.Photo")
    assert "for shop.Photo. Run: manage.py migrate shop --database default" in look.stdout
    assert made.run("migrate").returncode == 0
    made.write(
        "shop/models.py", MODELS_HEAD, PHOTO + "    height = models.IntegerField(null=True)\n"
    )
    worker = made.run("claimworker", "shop.Photo")
    assert worker.returncode == 2
    assert f"lacks the column height. Run: {FORGOTTEN}" in worker.stdout


def test_capital_letters_of_a_column_are_not_missing(project: Any) -> None:
    """SQLite and MySQL take no notice of them, and tables of others are declared one way and made another."""
    made = project(PHOTO.replace("null=True", "null=True, db_column='Width'"))
    made.run("migrate", "--run-syncdb")
    made.write(
        "ask.py",
        """
        from django.db import connection
        from shop.models import Photo
        connection.cursor().execute('ALTER TABLE shop_photo RENAME COLUMN "Width" TO "width"')
        Photo.objects.create()
        """,
    )
    made.run("shell", "--verbosity", "0", "--command", "import ask")
    answer = made.run("claimworker", "--drain", "--in-process")
    assert (answer.returncode, answer.stdout) == (0, "measured\n")


def test_columns_that_no_migration_adds_are_told(project: Any) -> None:
    made = project("class Photo(models.Model): pass\n", "")
    made.run("makemigrations", "shop")
    made.run("migrate")
    made.write("shop/models.py", MODELS_HEAD, "class Photo(ClaimMixin): pass\n")
    made.write("ask.py", "from shop.models import Photo\nPhoto.objects.claim_batch(1)\n")
    verb = made.run("shell", "--verbosity", "0", "--command", "import ask").stdout
    assert "Run manage.py makemigrations shop, then manage.py migrate shop." in verb
    look = made.run("claimstatus", "shop.Photo")
    assert look.returncode == 1
    assert "lacks the columns status, claimed_by" in look.stdout
    adopting = (
        " (or manage.py claimadopt shop.Photo, so that rows that are there are not done again)"
    )
    assert FORGOTTEN.replace("shop,", f"shop{adopting},") in look.stdout


def test_a_database_that_is_down_is_waited_for(project: Any) -> None:
    pytest.importorskip("psycopg")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
    address = {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": "127.0.0.1",
        "PORT": port,
        "NAME": "x",
    }
    made = project(settings=f"DATABASES = {{'default': {address}}}\n")
    worker = made.start("claimworker", "shop.Photo")
    try:
        assert worker.stdout is not None
        lines: list[str] = []
        while "refused" not in "".join(lines):
            lines.append(worker.stdout.readline())
            assert lines[-1], lines
        assert worker.poll() is None
    finally:
        worker.terminate()
        worker.communicate(timeout=60)
    assert worker.returncode == 0


# Managers of other people's bases

AUTH = "from django.contrib.auth.models import AbstractUser, UserManager\n"
USER_SETTINGS = "AUTH_USER_MODEL = 'shop.User'\n"
BASE = """
class PublishedQuerySet(models.QuerySet):
    def published(self): return self.filter(published=True)
class Base(models.Model):
    published = models.BooleanField(default=True)
    objects = {manager}
    class Meta:
        abstract = True
"""
HARD = """
class PathManager(models.Manager):
    def get_queryset(self): return PublishedQuerySet(self.model, using=self._db).order_by("pk")
    def first_path(self): return self.first()
"""


def hint_of(answer: Any) -> str:
    """Return the lines of the only hint, as somebody would copy them."""
    hint = answer.stdout.partition("HINT: ")[2].partition("\n\n")[0]
    return "\n".join(line.removeprefix("\t") for line in hint.splitlines())


@pytest.mark.parametrize(
    ("bases", "number"),
    [("TaskMixin, {}", "E015"), ("{}, TaskMixin", "E002")],
    ids=["first", "last"],
)
class TestAForeignManager:
    """The recipe of the hint, pasted, gives the model both managers; in either order of bases."""

    def mend(self, made: Project, before: str, user: str, number: str) -> str:
        answer = made.run("check")
        assert_told(answer, number)
        lines = hint_of(answer).splitlines()
        recipe, objects = "\n".join(lines[:-1]), f"    {lines[-1]}\n"
        made.write("shop/models.py", f"{MODELS_HEAD}{before}\n{recipe}\n{user}{objects}")
        assert_told(made.run("check"), "")
        return "\n".join(lines)

    def test_of_a_user_model(self, project: Any, bases: str, number: str) -> None:
        user = f"class User({bases.format('AbstractUser')}):\n    pass\n"
        made = project(
            AUTH + user, "@handler('shop.User')\ndef greet(user): print('greeted')\n", USER_SETTINGS
        )
        recipe = self.mend(made, AUTH, user, number)
        assert "class ClaimUserManager(ClaimManager, UserManager):" in recipe
        made.env["DJANGO_SUPERUSER_PASSWORD"] = "secret"
        for command in (
            "makemigrations shop",
            "migrate",
            "createsuperuser --noinput --username ann --email ann@example.com",
        ):
            answer = made.run(*command.split())
            assert answer.returncode == 0, answer.stdout
        # A manager that migrations use is found again under its name.
        assert made.run("makemigrations", "--check").returncode == 0
        answer = made.run("claimworker", "shop.User", "--in-process", "--drain")
        assert answer.stdout.split() == ["greeted"]

    @pytest.mark.parametrize(
        ("manager", "more"),
        [("PublishedQuerySet.as_manager()", ""), ("PathManager()", HARD)],
        ids=["of a queryset", "with a queryset of its own"],
    )
    def test_of_an_abstract_base(
        self, project: Any, bases: str, number: str, manager: str, more: str
    ) -> None:
        published, _, base = BASE.format(manager=manager).partition("class Base")
        before = f"{published}{more}class Base{base}"
        photo = f"class Photo({bases.format('Base')}):\n    pass\n"
        made = project(before + photo)
        self.mend(made, before, photo, number)
        made.run("migrate", "--run-syncdb")
        call = "Photo.objects.first_path()" if more else "Photo.objects.published()"
        made.write(
            "ask.py",
            f"from shop.models import Photo\n{call}\nprint('claimed', Photo.objects.claim_batch(1))",
        )
        answer = made.run("shell", "--verbosity", "0", "--command", "import ask")
        assert answer.stdout.strip() == "claimed []"


def test_a_manager_of_the_users_own_hides_what_it_likes(project: Any) -> None:
    """A manager named in the class is meant; a plain one of a base is no loss."""
    models = BASE.format(manager="PublishedQuerySet.as_manager()") + (
        "class Photo(TaskMixin, Base):\n    objects = ClaimManager()\n"
        "class Plain(models.Model):\n    objects = models.Manager()\n    class Meta:\n        abstract = True\n"
        "class Text(TaskMixin, Plain): pass\n"
    )
    assert_told(project(models).run("check"), "")


# A first day


@pytest.mark.parametrize("line", ["@handler", "@handler('shop.Foto')"])
def test_a_worker_says_which_handler_may_have_been_meant(project: Any, line: str) -> None:
    made = project(PHOTO, f"{line}\ndef measure(photo): ...\n")
    made.run("migrate", "--run-syncdb", "--skip-checks")
    answer = made.run("claimworker", "shop.Photo", "--drain")
    assert answer.returncode == 2
    assert "has no handler, and shop.claims.measure (line " in answer.stdout
    assert "is not registered as a handler: " in answer.stdout


def test_without_the_app_the_mixin_says_where_to_add_it(project: Any) -> None:
    made = project()
    conf = made.where / "conf.py"
    conf.write_text(conf.read_text() + "\nINSTALLED_APPS.remove('django_taskclaim')\n")
    answer = made.run("check")
    assert "Add 'django_taskclaim' to INSTALLED_APPS" in answer.stdout.splitlines()[-1]
