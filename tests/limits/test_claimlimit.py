"""``claimlimit``, and where its limits are shown."""

import pytest

from django_taskclaim.control.models import OperatorAct
from django_taskclaim.limits import stops_of
from django_taskclaim.management.base import acting
from tests.commands import run
from tests.factories import make
from tests.limits.conftest import claimed
from tests.testapp.models import Photo

pytestmark = [
    pytest.mark.django_db(databases="__all__"),
    pytest.mark.usefixtures("nothing_learned"),
    pytest.mark.once,
]


def test_limits_are_set_shown_followed_and_given_back() -> None:
    here = ["testapp.Photo", "--database", "default"]
    assert run("claimlimit", *here) == "testapp.Photo: no overrides\n"
    make(Photo, 30)
    words = ["--rate", "100/m", "--max-running", "20", "--hours", "22:00-06:00", "--by", "ada"]
    said = run("claimlimit", *here, *words, "--reason", "the API is slow")
    act = OperatorAct.objects.get()
    assert (act.model, act.act, act.by) == ("testapp.photo", "settings", acting("ada"))
    assert act.reason.endswith(": the API is slow")
    assert said == "testapp.Photo: rate 100/m, max running 20, hours 22:00-06:00\n"
    run("claimlimit", *here, "--rate", "none", "--hours", "default", "--by", "bob")
    held = stops_of(Photo).limits
    assert (held.rate, held.max_running, held.hours) == (None, 20, None)
    assert claimed(30) == 20
    assert run("claimlimit", *here, "--max-running", "default") == "testapp.Photo: rate none\n"
    said = run("claimlimit", *here, "--batch-size", "10", "--lease", "5m", "--by", "ada")
    assert said == "testapp.Photo: batch size 10, lease 300s, rate none\n"
    said = run("claimlimit", *here, "--batch-size", "default", "--by", "ada")
    assert said == "testapp.Photo: lease 300s, rate none\n"
    assert f"set by {acting('ada')}: lease 300s, rate none" in run("claimstatus", here[0])
