"""Run as a process of its own: takes letters, says which, and ends its block when told to.

``python -m tests.taking.probe <limit> <idle>`` prints a JSON list of keys, waits for a line, and prints "done" or
the class of the error that the block ended with.
"""

import sys

import django

from tests.processes import say


def main(limit: int, idle: float) -> None:
    django.setup()
    from django_taskclaim import take
    from tests.taking.models import Letter

    try:
        with take(Letter.objects.order_by("id"), limit, idle=idle) as letters:
            say([letter.pk for letter in letters])
            sys.stdin.readline()
    except Exception as error:
        say(type(error).__name__)
    else:
        say("done")


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
