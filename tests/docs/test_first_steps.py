"""The first minutes: the README's steps, the page about a first queue, and the example, as somebody types them."""

import contextlib
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

import django_taskclaim
from tests import documents
from tests.processes import output_of
from tests.projects import Project

pytestmark = [pytest.mark.once, pytest.mark.processes, pytest.mark.timeout(900)]

ROOT = documents.DOCS.parent

#: The smallest PNG that there is, so that the first steps need no network.
DOT = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY"
    "42YAAAAASUVORK5CYII="
)


def python_blocks(name: str) -> list[str]:
    text = (ROOT / name).read_text(encoding="utf-8")
    return [str(block.values[0]) for block in documents.blocks(text, "python")]


def test_the_readmes_first_steps_work_from_nothing(tmp_path: Path) -> None:
    """A new project, the README's files and commands: every row is done, and its columns are filled."""
    manage(tmp_path, "-m", "django", "startproject", "mysite", ".")
    manage(tmp_path, "manage.py", "startapp", "photos")
    for source in [*python_blocks("README.md"), *python_blocks("docs/admin.md")]:
        if name := re.match(r"# (photos/\S+\.py)\n", source):
            (tmp_path / name[1]).write_text(source, encoding="utf-8")
    with (tmp_path / "mysite" / "settings.py").open("a", encoding="utf-8") as settings:
        settings.write('INSTALLED_APPS = ["admin_actions", *INSTALLED_APPS, "django_taskclaim"]\n')
        settings.write('INSTALLED_APPS += ["django_taskclaim.control", "photos"]\n')
    shells = documents.blocks((ROOT / "README.md").read_text(encoding="utf-8"), "sh")
    typed = next(text for block in shells if "manage.py migrate" in (text := str(block.values[0])))
    steps = [line.split() for line in typed.splitlines()]
    worker = next(place for place, words in enumerate(steps) if "claimworker" in words)
    for words in steps[:worker]:
        manage(tmp_path, *words[1:])
    with contextlib.closing(sqlite3.connect(tmp_path / "db.sqlite3")) as database:
        # A row that exists is the work to do, however it was made.
        database.executemany("INSERT INTO photos_photo (url) VALUES (?)", [(DOT,)] * 3)
        database.commit()
        outputs = [manage(tmp_path, *words[1:]) for words in steps[worker:]]
        measured = database.execute("SELECT width, height, status FROM photos_photo").fetchall()
    assert measured == [(1, 1, "complete")] * 3
    assert re.search(r"photos\.Photo +0 +0 +3 ", outputs[-1])


def manage(folder: Path, *words: str) -> str:
    """Run Python in a new project, which knows nothing of these tests."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("DJANGO_")}
    env.pop("PYTHONSAFEPATH", None)
    env["PYTHONPATH"] = str(Path(django_taskclaim.__path__[0]).parent)
    return output_of(*words, env=env, cwd=folder)


def test_the_first_queue_is_as_its_page_tells(tmp_path: Path) -> None:
    """Rows that are there, the mixin, the commands that claimadopt prints, a handler, a row that fails."""
    before, fill, after, claims = python_blocks("docs/first-queue.md")
    quick = 'TASKCLAIM = {"BACKOFF_FIRST": 0.1, "BACKOFF_MAX": 0.1}'
    project = Project(tmp_path / "project", before, settings=quick)

    def typed(*words: str, code: int = 0) -> str:
        done = project.run(*words)
        assert done.returncode == code, done.stdout
        return str(done.stdout)

    assert "No installed app has a model that can be claimed" in typed("claimworker", code=2)
    typed("makemigrations", "shop")
    typed("migrate", "shop", "-v", "0")
    typed("shell", "-c", fill)
    project.write("shop/models.py", after)
    project.write("shop/claims.py", claims)
    said = typed("claimadopt", "shop.Invoice").partition("Next, in this order:")[2]
    steps = re.findall(r"^ *manage\.py (.*?)(?:  .*)?$", said, re.MULTILINE)
    opening, working = "claimreset shop.Invoice --paused", "claimworker shop.Invoice"
    assert steps == ["migrate", opening, working]
    typed("migrate")
    typed(*opening.split(), "--limit", "120", "--noinput")
    said = typed(*working.split(), "--drain")
    assert "ValueError: not enough values to unpack" in said
    assert "worker: 119 rows done, 1 failed, 0 held" in said
    mend = "from shop.models import Invoice; Invoice.objects.filter(pk=107).update(text='7 x 1')"
    typed("shell", "-c", mend)
    assert "Reset 1 row" in typed("claimreset", "shop.Invoice", "--noinput")
    typed(*opening.split(), "--noinput")
    # Without a name every model with a handler is worked on.
    said = typed("claimworker", "--drain", "--processes", "1")
    assert said.startswith("Working on shop.Invoice in 1 process ")
    assert "worker: 4,881 rows done" in said


@pytest.mark.promise(5, 7)
def test_the_examples_account_adds_up_after_a_kill(
    process_env: dict[str, str], tmp_path: Path
) -> None:
    """No picture is missing, each extra run has its reason, and the control room stays until Ctrl-C."""
    ignored = shutil.ignore_patterns("var")
    project = shutil.copytree(ROOT / "example_project", tmp_path / "example", ignore=ignored)
    env = {name: value for name, value in process_env.items() if name != "DJANGO_SETTINGS_MODULE"}
    # Python must find the project beside manage.py.
    env.pop("PYTHONSAFEPATH", None)
    env.pop("DATABASE_URL")
    words = [sys.executable, "manage.py", "demo", "--rows", "150", "--kill", "--stay"]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(words, cwd=project, env=env, preexec_fn=heed, **pipes) as demo:
        try:
            assert demo.stdout is not None
            said = ""
            for line in demo.stdout:
                said += line
                if room := re.search(r"until Ctrl-C: (http://\S+)", line):
                    with urlopen(room[1], timeout=120) as answer:
                        assert answer.url.partition("?")[0].endswith("/admin/login/")
                    demo.send_signal(signal.SIGINT)
            demo.wait(120)
        finally:
            demo.kill()
    assert demo.returncode == 0, said
    assert "was killed with SIGKILL" in said
    assert "150 of 150 rows" in said
    assert "Everything adds up." in said
    addresses = [
        line for line in said.splitlines() if "/admin/taskclaim/control/photos.photo/" in line
    ]
    # Each fits into a terminal of 80 columns, so that it can be clicked there.
    assert [len(line) <= 80 for line in addresses] == [True, True]
    assert "Traceback" not in said
