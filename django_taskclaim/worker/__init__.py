"""The worker: a supervisor without database calls, and children that claim, run and renew.

``supervisor`` keeps the children alive and passes signals on. A child (``process``) has one main thread that only waits
for signals, one that obeys the supervisor, one claimer (``claimer``), handler threads (``executors``) and one service
thread (``service``) that renews, reads the switch and reaps, on a connection of its own. What they share is
``inflight``, and a ``Feed`` for each model. Every change of state goes through the verbs of the querysets; nothing here
writes a claim column.
"""

#: What apps above this one add to every worker process, so that the worker need not know them: paths of functions that
#: are given the ``Service`` and return a list of ``Duty``.
more_duties: set[str] = set()
