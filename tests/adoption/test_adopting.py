"""``claimadopt`` and the migrations it writes: the same table as a new one, and nobody's past done again."""

from typing import Any

import pytest
from django.core.management.base import CommandError
from django.db import connection, migrations
from django.db.migrations.loader import MigrationLoader
from django.db.models import Value
from django.db.models.functions import Length

from django_taskclaim.adoption.operations import AddClaimColumns
from django_taskclaim.exceptions import WouldRewrite
from django_taskclaim.fields import CounterField
from tests.adoption.conftest import Project, execute, shape

pytestmark = pytest.mark.django_db(transaction=True)

ADOPTED = ["0001_initial", "0002_adopt_parcel", "0003_adopt_parcel_index"]


def test_old_rows_are_paused_and_new_ones_open(project: Project, parcel: Any) -> None:
    project.adopt("adoption.Parcel")
    project.migrate()
    execute("INSERT INTO adoption_parcel (address) VALUES ('by code of before')")
    parcel.objects.create(address="by code of now")
    states = dict(parcel.objects.values_list("address", "status"))
    assert {name: state for name, state in states.items() if state != "paused"} == {
        "by code of before": "open",
        "by code of now": "open",
    }
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


def test_a_dry_run_writes_nothing_and_a_run_two_migrations(project: Project, parcel: Any) -> None:
    """The closing lines name the next commands; nothing is left to ``makemigrations``."""
    said = project.adopt("adoption.Parcel", "--dry-run")
    assert project.files == ["0001_initial"]
    assert "Nothing was written. Without --dry-run" in said
    assert "AddClaimColumns(" in said
    assert "AddClaimIndex(" in said
    assert said.count("atomic = False") == 2
    said = project.adopt("adoption.Parcel")
    assert project.files == ADOPTED
    assert project.unmade("parcel") == []
    assert "Other changes of adoption are left to manage.py makemigrations" in said
    assert "claimresume adoption.Parcel --rows" in said
    assert "'paused'" in project.run("sqlmigrate", "adoption", "0002")
    assert "status" not in shape("adoption_parcel")[0]
    with pytest.raises(CommandError, match=r"run manage\.py migrate") as caught:
        project.adopt("adoption.Parcel")
    assert caught.value.returncode == 2


def test_the_table_is_the_one_that_a_new_project_gets(project: Project, parcel: Any) -> None:
    project.adopt("adoption.Parcel")
    project.migrate()
    adopted = shape("adoption_parcel")
    with connection.schema_editor() as editor:
        editor.delete_model(parcel)
    with connection.schema_editor() as editor:
        editor.create_model(parcel)
    assert adopted == shape("adoption_parcel")


def test_the_migrations_go_back_and_forth(project: Project, parcel: Any) -> None:
    before = shape("adoption_parcel")
    project.adopt("adoption.Parcel")
    project.migrate()
    project.migrate("0001")
    assert shape("adoption_parcel") == before
    assert execute("SELECT COUNT(*) FROM adoption_parcel")[0][0] == 5
    project.migrate()
    assert parcel.objects.filter(status="paused").count() == 5


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
    """A ``ClaimMixin`` that became a ``TaskMixin``: rows keep their states, and a new index replaces the old one."""
    project.adopt("adoption.Parcel")
    grown = ("completed_at", "attempts", "not_before", "last_error", "error_class", "priority")

    def without_the_grown(source: str) -> str:
        lines = source.splitlines()
        kept = [
            line
            for line in lines
            if not any(line.strip().startswith((f"('{name}'", f'("{name}"')) for name in grown)
        ]
        return "\n".join(kept) + "\n"

    columns, index = (project.source(name) for name in ADOPTED[1:])
    project.write(ADOPTED[1], without_the_grown(columns))
    for part in ("'-priority', 'not_before', ", '"-priority", "not_before", '):
        index = index.replace(part, "")
    project.write(ADOPTED[2], index.replace("_clm", "_old"))
    project.migrate()
    said = project.adopt("adoption.Parcel", "--name", "more")
    assert "Add 6 claim columns" in said
    project.migrate()
    assert project.unmade("parcel") == []
    assert set(parcel.objects.values_list("status", "attempts")) == {("paused", 0)}
    claim_indexes = [name for name in shape("adoption_parcel")[1] if "_status_" in name]
    assert len(claim_indexes) == 1
    assert claim_indexes[0].endswith("_clm")
    project.migrate("0003")
    assert [name[-4:] for name in shape("adoption_parcel")[1] if "_status_" in name] == ["_old"]


def test_a_column_of_the_users_own_is_left_alone(project: Project) -> None:
    with pytest.raises(CommandError, match=r"adoption\.Taken has had status before.*Prefixed"):
        project.adopt("adoption.Taken")
    assert project.files == ["0001_initial"]


def test_a_table_that_no_migration_makes_is_not_adopted(project: Project) -> None:
    with pytest.raises(CommandError, match=r"run manage\.py makemigrations"):
        project.adopt("adoption.New")
    with pytest.raises(CommandError, match="managed = False"):
        project.adopt("adoption.Legacy")


def test_a_default_that_must_be_computed_is_refused(project: Project, parcel: Any) -> None:
    field = CounterField(db_default=Length(Value("open")), default=4)
    step = AddClaimColumns("parcel", [("iteration", field)])
    migration = migrations.Migration("0002_by_hand", "adoption")
    migration.operations, migration.atomic = [step], False
    state = MigrationLoader(None).project_state()
    with (
        connection.schema_editor(atomic=False) as editor,
        pytest.raises(WouldRewrite, match="iteration has no constant db_default") as caught,
    ):
        migration.apply(state, editor)
    assert caught.value.table == "adoption_parcel"
    assert "iteration" not in shape("adoption_parcel")[0]
