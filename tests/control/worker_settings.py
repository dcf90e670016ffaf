"""Settings of workers whose rows have a history."""

import tests.settings as usual
from tests.settings import *  # noqa: F403

TASKCLAIM = {**getattr(usual, "TASKCLAIM", {}), "HISTORY": ["testapp.Job"]}
