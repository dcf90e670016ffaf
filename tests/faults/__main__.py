"""Try whether the tests find mistakes: `python -m tests.faults [3 5.1 …] [--database-url …] [-- pytest options]`.

Each fault is put into a copy of the checkout, where pytest runs the tests of the broken promise and, if none fails,
all others but the long ones. The exit code is 1 if a fault survives or does not fit the package any more.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.faults import FAULTS, Fault

ROOT = Path(__file__).parents[2]
PACKAGE = "django_taskclaim"
LEFT_OUT = shutil.ignore_patterns(".git", ".tox", ".venv", "*_cache", "__pycache__", "_build")


class WrongFaultError(Exception):
    """The fault cannot be judged: it must be rewritten, or the tests fail without it."""


def put_in(fault: Fault, folder: Path) -> None:
    """Give the copy in *folder* a fresh package, with the fault in it."""
    shutil.rmtree(folder / PACKAGE)
    shutil.copytree(ROOT / PACKAGE, folder / PACKAGE, ignore=LEFT_OUT)
    for file, old, new in fault.edits:
        path = folder / PACKAGE / file
        text = path.read_text() if path.exists() else ""
        if text.count(old) != 1:
            raise WrongFaultError(f"rewrite this fault: {file} has {text.count(old)} times {old!r}")
        path.write_text(text.replace(old, new))


def run_tests(folder: Path, options: list[str], url: str, promise: int = 0) -> str:
    """Return the first test that failed in the copy, empty if none did."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "PYTHONSAFEPATH": "1",
        "DATABASE_URL": url,
        "TASKCLAIM_FAULTY": str(folder),
        "TASKCLAIM_PROMISE": str(promise),
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "-p", "no:cacheprovider"]
    # One of its tests wants the package that tox has installed.
    command += ["-p", "tests.faults.plugin", "--ignore=tests/test_which.py"]
    done = subprocess.run(
        [*command, *options],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    failed = re.search(r"^(?:FAILED|ERROR) (\S+::.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
    if failed:
        return failed[1]
    # 5: no test was selected.
    if done.returncode not in (0, 5):
        raise WrongFaultError(f"pytest ended with {done.returncode}:\n{done.stdout[-3000:]}")
    return ""


def find_killer(fault: Fault, promise: int, folder: Path, options: list[str], url: str) -> str:
    """Return a test that fails because of the fault, empty if there is none."""
    usual = ["-m", "not long and not browser"]
    put_in(fault, folder)
    killer = run_tests(folder, [*usual, *options], url, promise)
    killer = killer or run_tests(folder, [*usual, *options], url)
    if killer:
        put_in(fault._replace(edits=[]), folder)
        if run_tests(folder, [killer], url):
            raise WrongFaultError(f"without the fault this test fails, too: {killer}")
    return killer


def kind_of(url: str) -> str:
    """Return which of DATABASES the address is of."""
    if "postgres" in url:
        return "postgresql"
    return "mysql" if "mysql" in url or "mariadb" in url else "sqlite"


def main() -> int:
    given, options = sys.argv[1:], []
    if "--" in given:
        place = given.index("--")
        given, options = given[:place], given[place + 1 :]
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("numbers", nargs="*", help="promises (3) or faults (3.2); all if none")
    parser.add_argument("--database-url", default=os.environ.get("DATABASE_URL", ""))
    asked = parser.parse_args(given)
    counts = dict.fromkeys(["killed", "SURVIVED", "WRONG", "elsewhere"], 0)
    with tempfile.TemporaryDirectory(prefix="taskclaim-faults-") as name:
        folder = Path(name) / "copy"
        shutil.copytree(ROOT, folder, ignore=LEFT_OUT)
        # A server that the tests run under another account reads there, too.
        Path(name).chmod(0o755)
        for promise, faults in FAULTS.items():
            for place, fault in enumerate(faults, 1):
                number, began = f"{promise}.{place}", time.monotonic()
                if asked.numbers and not {str(promise), number}.intersection(asked.numbers):
                    continue
                verdict, why = "elsewhere", f"breaks it on {' and '.join(fault.databases)}"
                if kind_of(asked.database_url) in fault.databases:
                    try:
                        why = find_killer(fault, promise, folder, options, asked.database_url)
                        verdict = "killed" if why else "SURVIVED"
                    except WrongFaultError as error:
                        verdict, why = "WRONG", str(error)
                counts[verdict] += 1
                seconds = time.monotonic() - began
                print(f"{number:5} {verdict:9} {seconds:5.0f} s  {fault.sentence}", flush=True)
                print(f"{'':25}{why}", flush=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return 1 if counts["SURVIVED"] or counts["WRONG"] else 0


if __name__ == "__main__":
    sys.exit(main())
