"""Completions of every policy whose COMMIT is never answered: what the rows still tell, and what nobody can."""

from collections.abc import Callable
from typing import Any

import pytest

from django_taskclaim.completion import Archive, Clear, Delete
from django_taskclaim.exceptions import CommitUndecided
from tests.behaviour.models import Parcel, ParcelArchive
from tests.behaviour.support import facts, stored
from tests.factories import make
from tests.proxy import swallowed, withheld

Rule = Callable[..., None]

#: Each policy that leaves nothing by which its own completion could be told from another's.
TRACELESS = {
    "delete": Delete(),
    "cascade": Delete(cascade=True),
    "archive": Archive(ParcelArchive),
    "clear": Clear(),
}


@pytest.fixture(params=TRACELESS)
def traceless(request: pytest.FixtureRequest, rule: Rule) -> str:
    rule(Parcel, completion=TRACELESS[request.param])
    return str(request.param)


def test_what_is_gone_or_open_again_is_undecided(commits: Any, traceless: str) -> None:
    """It is reported so, and not run again by us."""
    make(Parcel, 2)
    rows = Parcel.objects.claim_batch(2)
    commits.arm(swallowed)
    with pytest.raises(CommitUndecided) as caught:
        Parcel.objects.complete(rows)
    assert caught.value.undecided == rows
    assert all(row.claim.lost for row in rows)
    if traceless == "clear":
        assert [(facts(row).status, facts(row).iteration) for row in rows] == [("open", 1)] * 2
    else:
        assert not any(stored(row) for row in rows)
    assert ParcelArchive.objects.count() == (2 if traceless == "archive" else 0)


def test_what_was_not_committed_is_sent_again(commits: Any, traceless: str) -> None:
    make(Parcel, 2)
    rows = Parcel.objects.claim_batch(2)
    commits.arm(withheld)
    assert Parcel.objects.complete(rows) == 2
    assert commits.sprung.is_set()
    assert Parcel.objects.count() == (2 if traceless == "clear" else 0)
    assert ParcelArchive.objects.count() == (2 if traceless == "archive" else 0)


@pytest.mark.parametrize("fate", [swallowed, withheld], ids=["committed", "not committed"])
def test_a_row_that_a_function_was_called_with_is_ours(
    commits: Any,
    rule: Rule,
    fate: Any,
) -> None:
    """Its effects are there once; where the first COMMIT did not arrive, it is called again."""
    called: list[int] = []

    def archive(rows: list[Any]) -> None:
        called.append(len(rows))
        ParcelArchive.objects.bulk_create(
            ParcelArchive(pk=row.pk, counter=1, weight=1, completed_at=row.completed_at)
            for row in rows
        )

    rule(Parcel, completion=archive)
    make(Parcel, 2)
    rows = Parcel.objects.claim_batch(2)
    commits.arm(fate)
    assert Parcel.objects.complete(rows) == 2
    assert ParcelArchive.objects.count() == 2
    assert called == ([2] if fate is swallowed else [2, 2])
    assert [facts(row).status for row in rows] == ["complete"] * 2
