"""``claimworker --filter``: what it selects on each database, and what it refuses before anything starts."""

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import models
from django.test.utils import isolate_apps

from django_taskclaim import handlers
from django_taskclaim.handlers import Handler
from django_taskclaim.models import TaskMixin
from django_taskclaim.worker.selection import SelectionError, narrowed
from tests.factories import make
from tests.testapp.models import (
    Author,
    Child,
    CompositeKey,
    HiddenRows,
    Job,
    OrderedByForeignKey,
    Parent,
    Photo,
    PrefixedOwnStatus,
    UuidKey,
)

pytestmark = pytest.mark.django_db(databases="__all__")


def one(model: type[models.Model], *filters: str, **options: Any) -> Handler:
    """Return a handler of *model*, narrowed."""
    (handler,) = narrowed([Handler(model, print, **options)], filters)
    return handler


def claimed(model: Any, *filters: str, **options: Any) -> set[Any]:
    """Claim through a handler that is narrowed, and return the keys."""
    return {row.pk for row in one(model, *filters, **options).rows().claim_batch(100)}


def photos(*values: dict[str, Any]) -> list[Any]:
    return [Photo.objects.create(**each).pk for each in values]


SELECTIONS = [
    (["country=NZ"], {0}),
    (["country="], {3}),
    (["country__in=NZ,AU"], {0, 1}),
    (["country__istartswith=n"], {0}),
    (["width__isnull=true"], {0, 3}),
    (["width__isnull=false"], {1, 2}),
    (["width__gte=20"], {2}),
    (["width__range=5,15"], {1}),
    (["priority__gte=1"], {1}),
    (["country__in=NZ,AU", "width__isnull=False"], {1}),
    (["width__gte=5", "width__gte=15"], {2}),
    (["note=a=b: c"], {2}),
    (["testapp.photo:country=AU"], {1}),
    (["not_before__date=2020-02-29"], {2}),
    (["not_before__lt=2020-02-29T12:00"], {0, 1, 3}),
    (["not_before__year=2020", "not_before__date__gt=2019-01-01"], {2}),
    (["pk__gte=0", "id__isnull=no"], {0, 1, 2, 3}),
]


@pytest.mark.parametrize(
    ("filters", "places"), SELECTIONS, ids=[" ".join(filters) for filters, _ in SELECTIONS]
)
def test_only_what_matches_is_claimed(filters: list[str], places: set[int]) -> None:
    """Values are converted by the column and the lookup; several filters must all match."""
    keys = photos(
        {"country": "NZ"},
        {"country": "AU", "width": 10, "priority": 1},
        {
            "country": "FR",
            "width": 20,
            "note": "a=b: c",
            "not_before": datetime(2020, 2, 29, 13, tzinfo=UTC),
        },
        {"country": ""},
    )
    assert claimed(Photo, *filters) == {keys[place] for place in places}


def test_a_single_row_beyond_a_link_is_looked_at() -> None:
    ann, bob = (Author.objects.create(name=name) for name in ("Ann", "Bob"))
    rows = [OrderedByForeignKey.objects.create(author=author) for author in (ann, bob, None)]
    assert claimed(OrderedByForeignKey, "author__name=Ann") == {rows[0].pk}
    assert claimed(OrderedByForeignKey, f"author={bob.pk}") == {rows[1].pk}
    assert claimed(OrderedByForeignKey, "author__isnull=true") == {rows[2].pk}


def test_inherited_tables_are_looked_at_from_both_sides() -> None:
    """A child's own column, its parent's, and the child seen from its parent."""
    first, second = (Child.objects.create(extra=extra, note=extra) for extra in ("a", "b"))
    plain = Parent.objects.create()
    assert claimed(Child, "extra=a", "note=a") == {first.pk}
    assert claimed(Parent, "child__extra=b") == {second.pk}
    assert claimed(Parent, "child__isnull=true") == {plain.pk}


def test_keys_and_truths_of_other_kinds() -> None:
    rows = make(UuidKey, 2)
    assert claimed(UuidKey, f"id={rows[0].pk}") == {rows[0].pk}
    wanted = CompositeKey.objects.create(tenant=1, number=2)
    CompositeKey.objects.create(tenant=2, number=2)
    assert claimed(CompositeKey, "tenant=1") == {wanted.pk}
    assert claimed(HiddenRows, "hidden=true") == set()
    draft = PrefixedOwnStatus.objects.create()
    assert claimed(PrefixedOwnStatus, "status=draft") == {draft.pk}


def test_the_handlers_own_queryset_holds_as_well() -> None:
    keys = photos({"country": "NZ", "width": 1}, {"country": "NZ"}, {"country": "AU", "width": 1})
    narrow = Photo.objects.filter(width=1)
    assert claimed(Photo, "country=NZ", queryset=narrow) == {keys[0]}


def test_a_filter_may_be_for_one_model_of_several() -> None:
    (key,) = photos({"country": "NZ"})
    other = make(UuidKey, 1)[0].pk
    both = [Handler(Photo, print), Handler(UuidKey, print)]
    photo, uuid = narrowed(both, ["testapp.Photo:country=AU", "note="])
    assert photo.rows().claim_batch(9) == []
    assert {row.pk for row in uuid.rows().claim_batch(9)} == {other}
    with pytest.raises(SelectionError, match=r"country=AU: testapp.UuidKey has no field 'country'"):
        narrowed(both, ["country=AU"])
    assert Photo.objects.open().get().pk == key


# What is refused


REFUSED: list[tuple[Any, str, str]] = [
    (Photo, "country", "'country' is no filter; write lookup=value, country=NZ for example"),
    (Photo, "countri=NZ", "testapp.Photo has no field 'countri'; did you mean country?"),
    (Photo, "zzz=1", "testapp.Photo has no field 'zzz'"),
    (Photo, "width__isnul=1", "width has no lookup 'isnul'; did you mean isnull?"),
    (Photo, "width__gt__lt=1", "'gt' compares, so nothing can follow it"),
    (Photo, "width=abc", "'abc' is no value for width (IntegerField)"),
    (Photo, "width__in=1,b", "'b' is no value for width__in (IntegerField)"),
    (Photo, "width=", "'' is no value for width (IntegerField); for NULL write width__isnull=true"),
    (Photo, "width__isnull=maybe", "'maybe' is neither true nor false"),
    (Photo, "width__range=3", "a range has two ends, as in width__range=1,9"),
    (Photo, f"id={10**30}", f"'{10**30}' is no value for id (BigAutoField)"),
    (Photo, "country=\udcff", "'\\udcff' is no value for country (CharField)"),
    (Photo, "not_before__date=soon", "'soon' is no value for not_before__date (DateField)"),
    (Photo, "not_before=31.12.2026", "'31.12.2026' is no value for not_before (MomentField)"),
    (UuidKey, "id=12", "'12' is no value for id (UUIDField)"),
    (HiddenRows, "hidden=2", "'2' is neither true nor false"),
    (Photo, "status=open", "status tells no open row from another, and a worker claims no others"),
    (Photo, "claimed_by__startswith=w", "claimed_by tells no open row from another"),
    (PrefixedOwnStatus, "claim_expires_at__isnull=1", "claim_expires_at tells no open row"),
    (Child, "parent_ptr__status=open", "status tells no open row from another"),
    (CompositeKey, "pk=1", "a composite key is no single value; filter by tenant, number"),
    (OrderedByForeignKey, "author__nam=A", "author has no lookup 'nam'; did you mean name?"),
    (OrderedByForeignKey, "author=Ann", "'Ann' is no value for author (BigAutoField)"),
    (OrderedByForeignKey, "author__orderedbyforeignkey__note=", "it looks at many other rows"),
    (Photo, "testapp.Job:note=", "testapp.Job is not among the models to work on"),
]


@pytest.mark.parametrize(("model", "text", "sentence"), REFUSED, ids=[each[1] for each in REFUSED])
def test_what_cannot_be_meant_is_one_sentence(model: Any, text: str, sentence: str) -> None:
    with pytest.raises(SelectionError) as caught:
        one(model, text)
    told = str(caught.value)
    assert told.removeprefix(f"{text}: ").startswith(sentence)
    assert "\n" not in told


@isolate_apps("tests.testapp")
def test_another_rows_claim_may_be_looked_at() -> None:
    """Only a condition on the claim of the very row makes no sense."""

    class Step(TaskMixin):
        after = models.ForeignKey("self", on_delete=models.CASCADE, null=True)

        class Meta:
            app_label = "testapp"

    narrowed_sql = str(one(Step, "after__status=complete").rows().query)
    assert "JOIN" in narrowed_sql
    with pytest.raises(SelectionError, match="tells no open row"):
        one(Step, "status=complete")


def test_a_queryset_that_cannot_be_claimed_from_is_named() -> None:
    with pytest.raises(SelectionError, match=r"testapp.Photo: .* through a slice"):
        one(Photo, "country=NZ", queryset=Photo.objects.all()[:3])


@pytest.fixture
def handled() -> Any:
    yield handlers.handler(Photo)(lambda photo: None)
    handlers.unregister(Photo)


@pytest.mark.usefixtures("handled")
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--filter", "countri=NZ"],
            "--filter countri=NZ: testapp.Photo has no field 'countri'; did you mean country?",
        ),
        (
            ["--filter", "country=NZ", "--filter", "width=x"],
            "--filter width=x: 'x' is no value for width (IntegerField).",
        ),
        (["--filter", ""], "--filter '' is no filter; write lookup=value, country=NZ for example,"),
        (["--once", "--drain"], "--once is one look, and --drain goes on until nothing is left;"),
    ],
)
def test_the_command_refuses_with_2(words: list[str], sentence: str) -> None:
    """One sentence and the exit code of wrong usage, before any process starts."""
    with pytest.raises(CommandError) as caught:
        call_command("claimworker", "testapp.Photo", *words)
    assert caught.value.returncode == 2
    assert re.sub(r"\s+", " ", str(caught.value)).startswith(sentence)
    assert str(caught.value).endswith((".", "?"))


def test_a_model_without_a_handler_is_named_first() -> None:
    with pytest.raises(CommandError, match=r"testapp\.UuidKey has no handler") as caught:
        call_command("claimworker", "testapp.UuidKey", "--filter", "id=12")
    assert caught.value.returncode == 2
    assert Job.objects.count() == 0
