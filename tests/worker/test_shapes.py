"""Every shape of a claimable model in the hands of real workers that are killed."""

import os
import signal
from collections import Counter

import pytest

from tests.factories import SHAPES, make
from tests.testapp.models import Effect, Photo
from tests.worker.conftest import Start, wait_until

ROWS = 10


@pytest.mark.promise(5, 7)
def test_each_row_of_every_shape_is_done_once_whoever_is_killed(start_worker: Start) -> None:
    """Two of the worker's processes die in the middle of atomic handlers; effect and result are there exactly once."""
    keys = {shape: [row.pk for row in make(shape, ROWS)] for shape in SHAPES}
    models = " ".join(shape._meta.label for shape in SHAPES)
    # One row is in the test's hands until both have died, or the others could be done before.
    kept = Photo.objects.claim_batch(1, lease=600)
    options = ("--drain", "--processes", "2", "--batch-size", "4")
    worker = start_worker(*options, model=models, TASKCLAIM_TEST_EVERY_SHAPE="1")
    for done in (len(SHAPES), 4 * len(SHAPES)):
        wait_until(lambda done=done: Effect.objects.count() >= done, what=f"{done} effects")
        os.kill(wait_until(worker.children)[0], signal.SIGKILL)
    Photo.objects.release(kept)
    assert worker.wait() == 0
    for shape, made in keys.items():
        rows = shape._base_manager.filter(pk__in=made)
        assert list(rows.values_list("counter", flat=True)) == [1] * ROWS, shape
        assert rows.model.objects.progress().failed == 0
    effects = Counter(Effect.objects.values_list("key", flat=True))
    assert set(effects.values()) == {1}
    # Whichever of the models that share a table has taken a row.
    keys_done = Counter(effect.partition(" ")[2] for effect in effects)
    assert keys_done == Counter(str(key) for made in keys.values() for key in made)
