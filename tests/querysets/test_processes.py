"""Claims in other processes than the one that took them: pickled over, or forked with their holder."""

import pickle
import subprocess
import sys
from typing import Any

import pytest

from django_taskclaim.exceptions import ClaimLost
from tests.factories import make
from tests.querysets.support import DEADLINE, facts, fresh, lose
from tests.testapp.models import Child, CompositeKey, Photo


def elsewhere(act: str, rows: list[Any], env: dict[str, str]) -> Any:
    """Return what a process of its own makes of the *rows*."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.querysets.process_probe", act],
        input=pickle.dumps(rows),
        env=env,
        capture_output=True,
        timeout=3 * DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return pickle.loads(done.stdout)


@pytest.mark.promise(3)
def test_a_claim_goes_on_in_the_process_it_was_sent_to(process_env: dict[str, str]) -> None:
    """One that was lost on the way is lost there, too."""
    (late,) = make(Photo)
    rows = []
    for model in (Photo, Child, CompositeKey):
        make(model)
        rows += model.objects.claim_batch(2)
    taken = lose(rows[0])
    written, lost = elsewhere("complete", rows, process_env)
    assert lost == [late.pk]
    assert (taken.claim.check(), fresh(late).note) == (True, "")
    assert [facts(row).status for row in rows[1:]] == ["complete"] * 3
    for here, there in zip(rows[1:], written, strict=True):
        # Ended there, so the ones that came back are ordinary instances …
        there.counter = 7
        there.save()
        assert (fresh(here).counter, fresh(here).note) == (7, there.note)
        # … and those that stayed here carry a token that stands no more.
        with pytest.raises(ClaimLost):
            here.save()


def test_a_fork_leaves_the_claims_and_the_session_of_its_parent_alone(
    process_env: dict[str, str],
) -> None:
    """A child may look at a claim at any time; for a verb it needs a connection of its own."""
    make(Photo, 2)
    rows = Photo.objects.claim_batch(2)
    assert elsewhere("fork", rows, process_env) == {
        "a look": "done",
        "the same session": True,
        "a verb": "done",
        "its copy here": "lost",
    }
    assert [facts(row).status for row in rows] == ["complete"] * 2
