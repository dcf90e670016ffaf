"""``manage.py claimresume``: let claims flow again."""

from django_taskclaim.control.actions import RESUME_ROWS
from django_taskclaim.management.commands.claimpause import Command as Pause


class Command(Pause):
    """Turn the switch on, or resume rows."""

    help = """Turn the switch of models on again; workers notice within seconds.

--all takes back the pause of everything; models that were paused by name stay paused, and are named here.

With --rows, open paused rows of one model, the old ones of a table just adopted for example, chunk by chunk, each
committed: it may be stopped (Ctrl-C) at any time, and the same command goes on from there."""
    epilog = """examples:
  manage.py claimresume photos.Photo
  manage.py claimresume --all
  manage.py claimresume photos.Photo --rows --limit 1000
  manage.py claimresume photos.Photo --rows --filter country=NZ --dry-run"""

    off, on_rows = False, RESUME_ROWS
