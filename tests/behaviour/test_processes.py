"""Claims in other processes than the one that took them: pickled over, or forked with their holder."""

import pickle
import subprocess
import sys
from typing import Any

import pytest

from django_taskclaim.exceptions import ClaimLost
from tests.behaviour.support import DEADLINE, facts, fresh, lose
from tests.factories import make
from tests.testapp.models import Child, CompositeKey, Photo


def elsewhere(act: str, rows: list[Any], env: dict[str, str]) -> Any:
    """Return what a process of its own makes of the *rows*."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.behaviour.process_probe", act],
        input=pickle.dumps(rows),
        env=env,
        capture_output=True,
        timeout=3 * DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return pickle.loads(done.stdout)


@pytest.mark.parametrize("model", [Photo, Child, CompositeKey])
def test_a_claim_goes_on_in_the_process_it_was_sent_to(
    model: Any, process_env: dict[str, str]
) -> None:
    make(model, 2)
    rows = model.objects.claim_batch(2)
    ended = elsewhere("complete", rows, process_env)
    assert [facts(row).status for row in rows] == ["complete"] * 2
    # Ended there, so the ones that came back are ordinary instances …
    ended[0].counter = 7
    ended[0].save()
    assert (fresh(rows[0]).counter, fresh(rows[0]).note) == (7, ended[0].note)
    # … and those that stayed here carry a token that stands no more.
    with pytest.raises(ClaimLost):
        rows[0].save()


def test_a_claim_that_was_lost_on_the_way_is_lost_there_too(process_env: dict[str, str]) -> None:
    make(Photo)
    (late,) = Photo.objects.claim_batch(1)
    taken = lose(late)
    with pytest.raises(AssertionError, match="ClaimLost"):
        elsewhere("complete", [late], process_env)
    assert taken.claim.check()
    assert fresh(late).note == ""


def test_a_fork_leaves_the_claims_and_the_session_of_its_parent_alone(
    process_env: dict[str, str],
) -> None:
    """A child may look at a claim at any time; for a verb it needs a connection of its own, as with all of Django."""
    make(Photo, 2)
    rows = Photo.objects.claim_batch(2)
    assert elsewhere("fork", rows, process_env) == {
        "a look": "done",
        "the same session": True,
        "a verb": "done",
        "its copy here": "lost",
    }
    assert [facts(row).status for row in rows] == ["complete"] * 2
