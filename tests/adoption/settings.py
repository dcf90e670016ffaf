"""Settings of a process that works on the tables of ``project``; the environment says where its migrations are."""

import os

from tests.settings import *  # noqa: F403

INSTALLED_APPS = ["django_taskclaim", "tests.adoption.app"]
MIGRATION_MODULES = {"adoption": os.environ["TASKCLAIM_TEST_MIGRATIONS"]}
