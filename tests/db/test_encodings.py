"""A database whose encoding is not Unicode."""

import pytest
from django.db import connection

from django_taskclaim.models import Switch
from tests.checks.support import configured
from tests.factories import make_claimed
from tests.testapp.models import Photo


@pytest.mark.skipif(
    connection.vendor != "postgresql", reason="needs a database whose encoding is not Unicode"
)
@pytest.mark.promise(10)
@pytest.mark.django_db(transaction=True)
def test_a_text_that_the_encoding_lacks_is_stored_in_escapes() -> None:
    """In a LATIN1 database an error with an emoji fails its row all the same, the emoji as an escape."""
    name = f"{connection.settings_dict['NAME']}_latin1"
    drop = f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"
    with connection.cursor() as cursor:
        cursor.execute(drop)
        cursor.execute(
            f"CREATE DATABASE {name} ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
        )
    try:
        with configured(NAME=name) as latin1:
            with latin1.schema_editor() as editor:
                for model in (Switch, Photo):
                    editor.create_model(model)
            rows = make_claimed(Photo, 2)
            assert Photo.objects.fail(rows[:1], ValueError("no 🎈 here"), retry=False) == 1
            assert Photo.objects.fail(rows[1:], "again 🎈") == 1
            texts = set(Photo.objects.values_list("last_error", flat=True))
            assert texts == {"no \\U0001f388 here", "again \\U0001f388"}
    finally:
        with connection.cursor() as cursor:
            cursor.execute(drop)
