"""Run by ``test_time_zones`` in a process of its own: ``migrate`` in an empty database.

``python -m tests.querysets.migrate_probe <USE_TZ> <TIME_ZONE> <TIME_ZONE of the database>`` prints what is stored in
``not_before`` by Python and by the column's default, and how many of these rows a claim finds.
"""

# ruff: noqa: E402 - models can be imported only once Django is set up

import json
import os
import sys

import django
from django.conf import settings

from tests import settings as usual

USE_TZ, TIME_ZONE, DATABASE_ZONE = sys.argv[1:]
settings.configure(
    DATABASES={"default": usual.DATABASES["default"] | {"TIME_ZONE": DATABASE_ZONE or None}},
    USE_TZ=USE_TZ == "yes",
    TIME_ZONE=TIME_ZONE,
    INSTALLED_APPS=["django_taskclaim", "django_taskclaim.control", "articles"],
)
django.setup()

from articles.models import Article
from django.db import connection

from django_taskclaim.fields import NEVER_WAITED


def main() -> None:
    usual_name = connection.settings_dict["NAME"]
    if connection.vendor != "sqlite":
        # That of a test run and an environment together is longer than servers allow.
        connection.settings_dict["TEST"]["NAME"] = f"test_migrate_{os.getpid()}"
    connection.creation.create_test_db(verbosity=0, autoclobber=True)
    try:
        Article.objects.create(source="Python")
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO articles_article (source, title, text, verdict, remark)"
                " VALUES ('SQL', '', '', '', '')"
            )
            cursor.execute("SELECT not_before FROM articles_article")
            stored = sorted({str(moment) for (moment,) in cursor.fetchall()})
        claimed = Article.objects.filter(not_before=NEVER_WAITED).claim_batch(5)
        shown = len({row.not_before for row in claimed})
    finally:
        connection.creation.destroy_test_db(usual_name, verbosity=0)
    json.dump({"stored": stored, "claimed": len(claimed), "shown": shown}, sys.stdout)


if __name__ == "__main__":
    main()
