"""What plans of small tables tell, which PostgreSQL counts whenever it likes: little of tables that are joined."""

import pytest
from django.db import connection, models

from django_taskclaim.doctor import examine
from django_taskclaim.doctor.plans import judged_plans
from tests.factories import make
from tests.test_doctor import handling, many, problems
from tests.testapp.models import Child, ClaimOnly, Parent, Photo, ReservedWords

pytestmark = pytest.mark.django_db(databases="__all__")


@pytest.mark.skipif(
    connection.vendor != "postgresql", reason="it alone assumes rows where none was counted"
)
@pytest.mark.parametrize("counted", [Parent, Child])
@pytest.mark.parametrize("before", [1, 3, 60])
@pytest.mark.parametrize("rows", [0, 3, 60])
def test_a_small_table_that_is_joined_says_nothing_by_its_plans(
    counted: type[models.Model], before: int, rows: int
) -> None:
    """The server counts tables whenever it likes, one of the two, or both at different times."""
    make(Child, before)
    with connection.cursor() as cursor:
        for table in {Parent._meta.db_table, counted._meta.db_table}:
            cursor.execute(f"ANALYZE {table}")
    Child._base_manager.all().delete()
    make(Child, rows)
    assert problems(examine(Child, "default")) == []


@pytest.mark.skipif(
    connection.vendor != "postgresql",
    reason="it alone counts the pages that are left of deleted rows",
)
@pytest.mark.django_db(transaction=True, databases="__all__")
@pytest.mark.parametrize("model", [Photo, ClaimOnly, ReservedWords])
def test_a_table_that_has_shrunk_says_nothing_by_its_plans(model: type[models.Model]) -> None:
    """Of thirty rows in pages of many, the planner walks all, by whichever index, rather than look each up."""
    many(model)
    model._default_manager.all().delete()
    make(model, 30)
    with connection.cursor() as cursor:
        cursor.execute(f"ANALYZE {connection.ops.quote_name(model._meta.db_table)}")
    assert problems(examine(model, "default")) == []


@pytest.mark.skipif(
    connection.vendor != "postgresql", reason="the others say nothing of a small table"
)
def test_a_small_table_that_was_counted_tells_of_a_missing_index() -> None:
    """The switch, which every claim reads, is no table that is joined."""
    make(Photo, 60)
    with connection.cursor() as cursor:
        cursor.execute(f"ANALYZE {Photo._meta.db_table}")
    with handling(Photo, order_by=["url"]):
        (found,) = problems(judged_plans(Photo, "default"))
        assert "sorts rows" in found.message
