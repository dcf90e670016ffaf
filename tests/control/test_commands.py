"""Commands to a dead worker: its rows come back at once, and a refusal of the database ends no command half-way."""

from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.utils import timezone

from django_taskclaim.control.commands import send_command
from django_taskclaim.control.models import OperatorAct, WorkerCommand
from django_taskclaim.models import WorkerProcess
from tests.factories import make
from tests.querysets.refusing import FROZEN, SAID, refused
from tests.querysets.support import set_raw
from tests.testapp.models import Job, Photo, UuidKey

DEAD = "worker@web-1:815"

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


@pytest.fixture
def held(settings: Any) -> None:
    """Four rows of each model that the dead worker serves, two of which make a chunk."""
    settings.TASKCLAIM = {"CHUNK_SIZE": 2}
    long_ago = timezone.now() - timedelta(hours=1)
    WorkerProcess.objects.create(
        name=DEAD,
        labels="testapp.Photo, testapp.Job, testapp.UuidKey",
        host="web-1",
        pid=815,
        version="1",
        started_at=long_ago,
        seen_at=long_ago,
    )
    for model in (Photo, Job, UuidKey):
        make(model, 4)
        for row in model.objects.claim_batch(4):
            set_raw(row, "claimed_by", f"'{DEAD}#1f'")


@pytest.mark.usefixtures("held")
def test_a_row_that_nobody_can_write_keeps_no_other_from_coming_back() -> None:
    """The command says what came back, and ends; another command puts back the rest."""
    frozen = Photo.objects.order_by("pk")[1].pk
    Photo.objects.filter(pk=frozen).update(note=FROZEN)
    with refused(Photo):
        sent = send_command(DEAD, "release", by="ada", reason="gone", using="default")
    (why,) = sent.refused
    assert sent.put_back == 11
    assert why.startswith("testapp.Photo: ")
    assert SAID in why
    assert [model.objects.open().count() for model in (Photo, Job, UuidKey)] == [3, 4, 4]
    assert WorkerCommand.objects.get().done_at is not None
    recorded = OperatorAct.objects.values_list("model", "rows", "key", "reason")
    assert set(recorded) == {
        (f"testapp.{name}", rows, DEAD, "release: gone")
        for name, rows in (("photo", 3), ("job", 4), ("uuidkey", 4))
    }
    assert send_command(DEAD, "release", by="ada", using="default").put_back == 1


@pytest.mark.once
@pytest.mark.usefixtures("held")
def test_a_command_that_nobody_can_obey_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValidationError, match="Release its rows"):
        send_command(DEAD, "drain", by="ada", using="default")
    with pytest.raises(ValidationError, match="'explode'; it knows drain, stop, release"):
        send_command(DEAD, "explode", by="ada", using="default")
    with pytest.raises(WorkerProcess.DoesNotExist):
        send_command("nobody", "stop", by="ada", using="default")
    assert not WorkerCommand.objects.exists()
    monkeypatch.setattr("django_taskclaim.control.commands.is_on", lambda using: False)
    with pytest.raises(ImproperlyConfigured, match="'default': add it to INSTALLED_APPS"):
        send_command(DEAD, "release", by="ada", using="default")
