"""Small mistakes in the package, each of which breaks a promise; `python -m tests.faults` tries them.

The promises are numbered as in ``tests/test_promises.py``.
"""

from typing import NamedTuple

DATABASES = ("sqlite", "postgresql", "mysql")


class Edit(NamedTuple):
    """The text *old*, which occurs exactly once in a file of the package, becomes *new*."""

    file: str
    old: str
    new: str


class Fault(NamedTuple):
    """What goes wrong, the edits that make it so, and the databases on which they break the promise."""

    sentence: str
    edits: list[Edit]
    databases: tuple[str, ...]


def fault(sentence: str, *edits: tuple[str, str, str], on: tuple[str, ...] = DATABASES) -> Fault:
    return Fault(sentence, [Edit(*edit) for edit in edits], on)


OPERATING, SCOPE = "querysets/operating.py", "querysets/scope.py"
COMPLETING = "querysets/completing.py"
FENCE, STATEMENTS = "querysets/fence.py", "db/sql.py"
POSTGRESQL = "db/postgresql.py"
SERVICE = "worker/service.py"
PROCESS, RUNNING = "worker/process.py", "worker/running.py"

#: By promise; "3.2" is the second fault of promise 3.
FAULTS = {
    1: [
        fault(
            "The reaper puts rows back a minute before their lease ends.",
            (
                SCOPE,
                'ended = Q(**{f"{expiry}__lte": cutoff or DatabaseNow()})',
                "from datetime import timedelta\n\n    from django_taskclaim.db import DatabaseLater\n\n"
                '    ended = Q(**{f"{expiry}__lte": DatabaseLater(timedelta(minutes=1))})',
            ),
        ),
        fault(
            "Claims that meet take the same rows: nothing is locked or looked at again.",
            (STATEMENTS, '"{} {} OF {}{}"', '"{} /* {} OF {}{} */"'),
            (
                STATEMENTS,
                "table.same_key(CANDIDATES, table.key),\n            condition,",
                "table.same_key(CANDIDATES, table.key),\n            'true',",
            ),
            on=("postgresql",),
        ),
    ],
    2: [
        fault(
            "A claim with include_held returns its limit beside what is held.",
            ("querysets/claiming.py", "call.limit - len(rows)\n", "call.limit\n"),
        ),
        fault(
            "A claim forgets a filter that joins another table.",
            (SCOPE, "return rows.filter(pk__in=keys)", "return rows"),
        ),
        fault(
            "A durable claim runs inside the caller's transaction.",
            (SCOPE, "if belongs_to_the_caller(connection)", "if False"),
        ),
        fault(
            "A slice can be claimed from, and what it leaves out is claimed as well.",
            (SCOPE, 'instead": query.is_sliced,', 'instead": False,'),
            # Only there: its test is marked ``once``.
            on=("sqlite",),
        ),
    ],
    3: [
        fault(
            "The fence lets an older token of the same holder pass.",
            (STATEMENTS, "{iteration} = %s", "{iteration} >= %s"),
        ),
        fault(
            "save() of an instance whose claim was lost writes the row.",
            (FENCE, "base_qs = base_qs.extra(where=[fence.text], params=fence.params)", "pass"),
        ),
        fault(
            "delete() of an instance whose claim was lost deletes the row.",
            (
                FENCE,
                "stands = not lock_claims([row])\n                if stands",
                "stands = True\n                if stands",
            ),
        ),
        fault(
            "complete() writes update_fields by a statement of its own, without the token.",
            (
                COMPLETING,
                "    for held, verb in zip(given.held, verbs, strict=True):\n",
                "    for held, verb in zip(given.held, verbs, strict=True):\n"
                "        for row in held.rows:\n"
                "            fields = checked_results(type(row), update_fields)\n"
                "            own = [f.attname for f in fields if isinstance(row, f.model)]\n"
                "            values = {name: getattr(row, name) for name in own}\n"
                "            rows = models.QuerySet(type(row), using=held.target.alias)\n"
                "            rows.filter(pk=row.pk).update(**values) if values else None\n"
                "        verb.own, verb.per_row = None, 0\n",
            ),
        ),
        fault(
            "complete() of rows whose claim was lost raises nothing.",
            ("querysets/writes.py", "if len(self._written) < len(self.rows)", "if False"),
        ),
        fault(
            "A row that is released keeps its iteration.",
            (SCOPE, '    "iteration": ONE_MORE,\n    "claimed_by": None', '    "claimed_by": None'),
        ),
    ],
    4: [
        fault(
            "The token of a claim that completed its row can still fail or release it.",
            (STATEMENTS, "{self.status} = '{Status.PROCESSING.value}'", "{self.status} <> 'open'"),
        )
    ],
    5: [
        fault(
            "An atomic handler's row is completed after its transaction has committed.",
            (
                RUNNING,
                "            _complete(item.handler, called)\n    ",
                "        _complete(item.handler, called)\n",
            ),
        ),
        fault(
            "An atomic handler that swallows a deadlock counts as done.",
            (RUNNING, "with unbroken_transaction(using, SWALLOWED):", "if True:"),
            on=("mysql",),
        ),
    ],
    6: [
        fault(
            "A renewed lease ends by the clock of the worker.",
            (
                STATEMENTS,
                'return SQL(f"{name} = {later}", (lease.total_seconds(),) * 2)',
                "from django.utils import timezone\n\n"
                "        column = table.columns.expires_at\n"
                "        end = value(column.get_db_prep_save(timezone.now() + lease, self.connection))\n"
                '        later = f"{self.greatest}(COALESCE({table.name}.{name}, {end.text}), {end.text})"\n'
                '        return SQL(f"{name} = {later}", (*end.params, *end.params))',
            ),
        )
    ],
    7: [
        fault(
            "What a killed child had not begun waits for the end of its lease.",
            ("worker/claimer.py", "in inflight.notes.unstarted():", "in ():"),
        ),
        fault(
            "Children of a killed supervisor go on claiming.",
            (PROCESS, "self.stop(min(self._grace, ORPHAN_GRACE))", "pass"),
            # Its test runs once, because no database makes a difference.
            on=("sqlite",),
        ),
        fault(
            "The server never ends the transaction of a worker that is frozen in it.",
            (
                POSTGRESQL,
                "in_transaction_session_timeout = {milli",
                "in_transaction_session_timeout = {0 * milli",
            ),
            on=("postgresql",),
        ),
    ],
    8: [
        fault(
            "A worker that cannot renew takes no claim for lost.",
            ("worker/batch.py", "return self.has_used(SELF_FENCE, now)", "return False"),
        ),
        fault(
            "renew() shortens a lease.",
            (STATEMENTS, "COALESCE({table.name}.{name}, {end})", "COALESCE(NULL, {end})"),
        ),
        fault(
            "A locked row that a renewal passes over is taken for lost.",
            (
                "querysets/writes.py",
                'outcome |= dict.fromkeys(rest.standing().keys, "skipped")',
                "pass",
            ),
            on=("mysql",),
        ),
    ],
    9: [
        fault(
            "The claim statement does not know the pause of all models.",
            ("tables.py", "[*scopes_over(model), *map(", "[*own_scopes(model), *map("),
        ),
        fault(
            "A busy worker keeps what it has not started when its model is paused.",
            (SERVICE, "self.keeper.withdraw(feed.model)", "pass"),
        ),
    ],
    10: [
        fault(
            "A row that kills its worker every time never fails.",
            (OPERATING, 'return "failed"\n        return', 'return "quarantined"\n        return'),
        ),
        fault(
            "A crash on the last try fails all rows that the process held, begun or not.",
            (OPERATING, '\n        return "quarantined"', '\n        return "failed"'),
        ),
    ],
    11: [
        fault(
            "A worker that was told to stop goes on claiming.",
            (PROCESS, "+ grace)\n        self.claimer.leave()", "+ grace)"),
        ),
        fault(
            "Rows that are given back unstarted are charged a try.",
            ("worker/batch.py", "NOT_STARTED = PutBack(", "NOT_STARTED = Failed("),
        ),
        fault(
            "A drain that ends with work left exits with 0.",
            (PROCESS, "return ExitCode.WORK_LEFT if", "return ExitCode.ENDED if"),
        ),
    ],
    12: [
        fault(
            "After a silence the reaper charges rows before the living could renew.",
            (
                "querysets/reaper.py",
                "if self._prompt - since < self._renewal_interval()",
                "if False",
            ),
        ),
        fault(
            "A row whose handler meets an outage of the database is charged a try.",
            (RUNNING, "return item.was_away", "return False"),
            on=("postgresql", "mysql"),
        ),
        fault(
            "A worker asks a database that is away without a pause.",
            ("worker/claimer.py", "self._rest(failures)", "pass"),
            on=("postgresql", "mysql"),
        ),
    ],
    13: [
        fault(
            "Every result that was written stays in memory.",
            (
                "worker/writer.py",
                "self.inflight.written(rows)\n",
                "self.inflight.written(rows)\n"
                '        globals().setdefault("kept", []).extend(rows)\n',
            ),
        ),
        fault(
            "Every row leaves a database connection behind.",
            (
                "worker/executors.py",
                "if connecting.has_opened(threading.get_ident()):\n",
                "if connecting.has_opened(threading.get_ident()):\n"
                "            from django.db import connections\n\n"
                '            old = self.__dict__.setdefault("old", [])\n'
                "            old.append(connections[self.options.using])\n"
                "            del connections[self.options.using]\n",
            ),
        ),
    ],
    14: [
        fault(
            "A database that commits nothing by itself is taken without a word.",
            ("checks.py", 'if not connections[alias].settings_dict["AUTOCOMMIT"]:', "if False:"),
        ),
        fault(
            "A server that isolates transactions too much is taken without a word.",
            (
                "monitoring/server/postgresql.py",
                'if "committed" not in isolation and',
                "if not isolation and",
            ),
            on=("postgresql",),
        ),
    ],
}
