"""Try whether the tests find mistakes: `python -m tests.faults [3 5.1 …] [--database-url …] [-- pytest options]`.

Each fault is put into a copy of the checkout, where pytest runs the tests of the broken promise and, if none fails,
all others but the long ones. With `--promise-only` it stops after the tests of the promise: the quick answer.
The exit code is 1 if a fault survives or does not fit the package any more.
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


def judge(fault: Fault, promises: list[int], folder: Path, options: list[str], url: str) -> str:
    """Return a test that fails because of the fault, empty if there is none.

    The tests of *promises* run one promise after the other; 0 stands for all tests.
    """
    usual = ["-m", "not long and not browser"]
    put_in(fault, folder)
    for promise in promises:
        if killer := run_tests(folder, [*usual, *options], url, promise):
            put_in(fault._replace(edits=[]), folder)
            if run_tests(folder, [killer], url):
                raise WrongFaultError(f"without the fault this test fails, too: {killer}")
            return killer if promise else f"{killer} (it has no mark of the promise)"
    return ""


def kind_of(url: str) -> str:
    """Return which of DATABASES the address is of."""
    if "postgres" in url:
        return "postgresql"
    return "mysql" if "mysql" in url or "mariadb" in url else "sqlite"


def chosen(numbers: list[str]) -> list[tuple[str, int, Fault]]:
    """Return the faults of the given promises (3) and those given by their own number (3.2); all if none is given."""
    numbered = [
        (f"{promise}.{place}", promise, fault)
        for promise, faults in FAULTS.items()
        for place, fault in enumerate(faults, 1)
    ]
    known = {number for number, _, _ in numbered} | {str(promise) for promise in FAULTS}
    if unknown := set(numbers) - known:
        sys.exit(f"No fault has the number {', '.join(sorted(unknown))}.")
    return [
        (number, promise, fault)
        for number, promise, fault in numbered
        if not numbers or {number, str(promise)}.intersection(numbers)
    ]


def main() -> int:
    given, options = sys.argv[1:], []
    if "--" in given:
        place = given.index("--")
        given, options = given[:place], given[place + 1 :]
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("numbers", nargs="*", help="promises (3) or faults (3.2); all if none")
    parser.add_argument("--database-url", default=os.environ.get("DATABASE_URL", ""))
    parser.add_argument(
        "--promise-only", action="store_true", help="run no tests but those marked with the promise"
    )
    asked = parser.parse_args(given)
    faults = chosen(asked.numbers)
    by_verdict: dict[str, list[str]] = {"killed": [], "SURVIVED": [], "WRONG": [], "elsewhere": []}
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="taskclaim-faults-") as name:
        folder = Path(name) / "copy"
        shutil.copytree(ROOT, folder, ignore=LEFT_OUT)
        # A server that the tests run under another account reads there, too.
        Path(name).chmod(0o755)
        for number, promise, fault in faults:
            began = time.monotonic()
            verdict, why = "elsewhere", f"breaks it on {' and '.join(fault.databases)} only"
            if kind_of(asked.database_url) in fault.databases:
                promises = [promise] if asked.promise_only else [promise, 0]
                try:
                    why = judge(fault, promises, folder, options, asked.database_url)
                    verdict = "killed" if why else "SURVIVED"
                except WrongFaultError as error:
                    verdict, why = "WRONG", str(error)
            by_verdict[verdict].append(number)
            seconds = time.monotonic() - began
            line = f"{number:5} {verdict:9} {seconds:5.0f} s  {fault.sentence}"
            print(f"{line}  [{why}]" if why else line, flush=True)
    print(f"\non {kind_of(asked.database_url)}, in {time.monotonic() - started:.0f} s:")
    for verdict, numbers in by_verdict.items():
        if numbers:
            print(f"{len(numbers):5} {verdict:9} {' '.join(numbers)}")
    return 1 if by_verdict["SURVIVED"] or by_verdict["WRONG"] else 0


if __name__ == "__main__":
    sys.exit(main())
