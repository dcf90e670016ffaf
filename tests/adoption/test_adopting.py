"""``claimadopt`` and the migrations it writes: the same table as a new one, and nobody's past done again."""

from resource import RLIMIT_FSIZE, getrlimit, setrlimit
from typing import Any

import pytest
from django.core.management.base import CommandError
from django.db import connection

from tests.adoption.conftest import Project, shape
from tests.querysets.support import execute

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

ADOPTED = ["0001_initial", "0002_adopt_parcel", "0003_adopt_parcel_index"]

#: The migration of a model that has ``ClaimMixin`` alone.
SMALL = """
from django.db import migrations
from django_taskclaim.indexes import ClaimIndex
from django_taskclaim.models import ClaimMixin


class Migration(migrations.Migration):
    dependencies = [("adoption", "0001_initial")]
    operations = [
        *(
            migrations.AddField("parcel", field.name, field.clone())
            for field in ClaimMixin._meta.local_fields
        ),
        migrations.AddIndex("parcel", ClaimIndex(fields=["status", "id"], name="parcel_status_old")),
    ]
"""


def test_old_rows_are_paused_and_new_ones_open(project: Project, parcel: Any) -> None:
    """The command writes two migrations, and ``makemigrations`` has nothing left to do."""
    said = project.adopt("adoption.Parcel")
    assert project.files == ADOPTED
    assert project.unmade("parcel") == []
    assert "claimreset adoption.Parcel --paused" in said
    assert "'paused'" in project.run("sqlmigrate", "adoption", "0002")
    with pytest.raises(CommandError, match=r"run manage\.py migrate") as caught:
        project.adopt("adoption.Parcel")
    assert caught.value.returncode == 2
    project.migrate()
    execute("INSERT INTO adoption_parcel (address) VALUES ('by code of before')")
    parcel.objects.create(address="by code of now")
    claimed = parcel.objects.claim_batch(10)
    assert {row.address for row in claimed} == {"by code of before", "by code of now"}
    assert parcel.objects.resume_rows() == 5
    assert len(parcel.objects.claim_batch(10)) == 5


@pytest.mark.parametrize("existing", ["open", "complete"])
def test_old_rows_become_what_was_asked_for(project: Project, parcel: Any, existing: str) -> None:
    project.adopt("adoption.Parcel", "--existing", existing)
    project.migrate()
    execute("INSERT INTO adoption_parcel (address) VALUES ('new')")
    states = list(parcel.objects.order_by("pk").values_list("status", flat=True))
    assert states == [existing] * 5 + ["open"]


def test_the_migrations_go_back_and_forth_to_the_table_of_a_new_project(
    project: Project, parcel: Any
) -> None:
    before = shape("adoption_parcel")
    project.adopt("adoption.Parcel")
    project.migrate()
    project.migrate("0001")
    assert shape("adoption_parcel") == before
    project.migrate()
    assert parcel.objects.filter(status="paused").count() == 5
    adopted = shape("adoption_parcel")
    with connection.schema_editor() as editor:
        editor.delete_model(parcel)
    with connection.schema_editor() as editor:
        editor.create_model(parcel)
    assert adopted == shape("adoption_parcel")


def test_a_table_with_a_status_of_its_own(project: Project) -> None:
    from tests.adoption.app.models import Letter

    quoted = connection.ops.quote_name("group")
    execute(f"INSERT INTO {quoted} (status) VALUES ('sent')")
    project.adopt("adoption.Letter")
    project.migrate()
    assert project.unmade("letter") == []
    Letter.objects.create()
    rows = Letter.objects.order_by("pk").values_list("status", "claim_status")
    assert list(rows) == [("sent", "paused"), ("written", "open")]


def test_a_mixin_that_has_grown_gets_what_it_lacks(project: Project, parcel: Any) -> None:
    """A ``ClaimMixin`` that became a ``TaskMixin``: rows keep their states; makemigrations drops the old index."""
    project.write("0002_small", SMALL)
    project.migrate()
    assert "Add 6 claim columns" in project.adopt("adoption.Parcel")
    project.migrate()
    (left,) = project.unmade("parcel")
    assert left.endswith("Remove index parcel_status_old from parcel")
    assert set(parcel.objects.values_list("status", "attempts")) == {("open", 0)}
    assert any(name.endswith("_clm") for name in shape("adoption_parcel")[1])


def test_what_it_cannot_adopt_is_refused_with_a_sentence(project: Project) -> None:
    """A column of the user's own, a table that no migration makes, one that Django does not manage, a full disk."""
    for label, sentence in {
        "adoption.Taken": r"adoption\.Taken has had status before.*Prefixed",
        "adoption.New": r"run manage\.py makemigrations",
        "adoption.Legacy": "managed = False",
    }.items():
        with pytest.raises(CommandError, match=sentence):
            project.adopt(label)
    before = getrlimit(RLIMIT_FSIZE)
    setrlimit(RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(CommandError, match="File too large"):
            project.adopt("adoption.Parcel")
    finally:
        setrlimit(RLIMIT_FSIZE, before)
    assert project.files == ["0001_initial"]
