"""Where a child process begins: nothing is imported here that needs Django's models before Django is set up."""

import pickle
from multiprocessing.connection import Connection

from django_taskclaim.worker.stop_signals import SignalPipe


def run_spawned(options: bytes, link: Connection, memory: object) -> None:
    """Set Django up, and be the child that the pickled *options* ask for.

    The process comes with the stop signals blocked, so it cannot die of one while it imports.
    """
    signals = SignalPipe()
    import django

    django.setup()
    from django_taskclaim.worker.child import run_child

    run_child(pickle.loads(options), link, memory, signals)
