"""Claim and complete as a worker does until no row is left, and tell how long each claim took.

    python -m benchmarks.claims 100

A process that ``benchmarks.scenarios`` starts several of. It prints a line when it is ready, waits for one, and prints
the milliseconds of all its claims as JSON at the end.
"""

import json
import sys
import time
from datetime import timedelta


def main(limit: int) -> None:
    import django

    django.setup()
    from benchmarks.app.models import Work
    from django_taskclaim.querysets.claiming import Request, new_holder
    from django_taskclaim.querysets.lower_bound import LowerBound

    bound, lease, took = LowerBound(), timedelta(seconds=60), []
    Work.objects.count()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    while True:
        request = Request(
            limit,
            new_holder("claims"),
            lease,
            include_held=False,
            durable=True,
            tells_beginning=True,
            bound=bound,
        )
        began = time.perf_counter()
        rows = Work._default_manager.all()._claim(request)
        took.append(round((time.perf_counter() - began) * 1000, 3))
        if not rows:
            break
        Work.objects.complete(rows)
    sys.stdout.write(f"{json.dumps(took)}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
