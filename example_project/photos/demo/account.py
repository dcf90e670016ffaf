"""Where every row is and why some were claimed twice, and at the end whether all of that adds up.

Three witnesses are heard: the table, the workers' records and the site that was asked for pictures.
"""

import json
import random
import time
from collections import Counter, defaultdict
from typing import Any

from django.conf import settings
from django.db.models import Count

from django_taskclaim.states import Status
from django_taskclaim.switch import paused_by

from ..claims import RESULTS
from ..models import Photo
from ..pictures import describe, paint
from .site import asked

SAMPLE = 200
UNWRITTEN = "put back by the killed process, which was gone before it wrote why"


class Account:
    """All the numbers that the demo shows, before and after the end."""

    def __init__(self, made: int) -> None:
        self.made = made
        self.elapsed = 0.0
        self.is_paused = False
        self.killed = ""
        self.states: Counter[str] = Counter()
        #: The rows in each state by the process that has, or had, their last claim.
        self.processes: defaultdict[str, Counter[str]] = defaultdict(Counter)
        #: Why a row was put back or given up, in order, by its key.
        self.reasons: defaultdict[str, list[str]] = defaultdict(list)
        self._began = time.monotonic()
        self._records = settings.RECORDS.open("rb")

    @property
    def finished(self) -> int:
        return self.states[Status.COMPLETE] + self.states[Status.FAILED]

    def look(self) -> None:
        """Count the rows in one statement, and read what is new in the records."""
        self.elapsed = time.monotonic() - self._began
        self.is_paused = paused_by(Photo) is not None
        self.states.clear()
        self.processes.clear()
        claims = Photo.objects.values_list("claimed_by", "status").annotate(Count("pk"))
        for holder, status, rows in claims:
            self.states[status] += rows
            if holder is not None:
                # A process claims each batch as <process>#<random>.
                self.processes[holder.partition("#")[0]][status] += rows
        self._read_records()

    def _read_records(self) -> None:
        while (line := self._records.readline()).endswith(b"\n"):
            record = json.loads(line)
            is_ours = record.get("model") == Photo._meta.label
            if is_ours and record["event"] in ("failed", "released", "expired"):
                for key in record["keys"]:
                    self.reasons[key].append(reason(record))
        # The rest of a line is still being written.
        self._records.seek(-len(line), 1)

    def settle(self) -> list[str]:
        """Compare what the witnesses say when all is over; return what does not add up, a sentence each."""
        self._read_records()
        missing = self.made - self.finished
        unexplained = worked_twice = 0
        for key, status, iteration in Photo.objects.values_list("pk", "status", "iteration"):
            unwritten = iteration + (status == Status.FAILED) - len(self.reasons[str(key)])
            if unwritten == 1 and self.killed:
                self.reasons[str(key)].append(UNWRITTEN)
            elif unwritten:
                unexplained += 1
            worked_twice += asked[key] > iteration + 1
        wrong = wrong_results()
        counts = {
            f"{missing:,} rows are missing.": missing,
            f"{unexplained:,} rows were claimed again for no known reason.": unexplained,
            f"{worked_twice:,} pictures were downloaded more often than claimed.": worked_twice,
            f"{wrong:,} results are not what their pictures say.": wrong,
        }
        return [sentence for sentence, count in counts.items() if count]


def wrong_results() -> int:
    """How many of some complete rows differ from what their pictures say."""
    keys = list(Photo.objects.filter(status=Status.COMPLETE).values_list("pk", flat=True))
    wrong = 0
    for key in random.sample(keys, min(SAMPLE, len(keys))):
        photo, wanted = Photo.objects.get(pk=key), Photo()
        describe(wanted, paint(key))
        wrong += any(getattr(photo, name) != getattr(wanted, name) for name in RESULTS)
    return wrong


def reason(record: dict[str, Any]) -> str:
    """Why rows were put back, in words that are the same for all rows it happens to."""
    if record["event"] == "expired":
        return "the lease ran out, as its process was dead"
    return str(record["reason"]).partition(" for ")[0]
