"""Serializers of all fields show the claim columns and write none."""

import pytest

from django_taskclaim.models import TaskMixin
from tests.third_party.app.models import Subscriber
from tests.third_party.app.serializers import PrioritySerializer, SubscriberSerializer

pytestmark = pytest.mark.django_db

OURS = {field.name for field in TaskMixin._meta.get_fields()}


def test_claim_columns_are_read_only() -> None:
    read_only = {name for name, field in SubscriberSerializer().fields.items() if field.read_only}
    assert read_only == OURS | {"id"}


def test_what_a_client_sends_for_them_is_not_written() -> None:
    sent = {"email": "a@example.com", "status": "complete", "priority": 9, "claimed_by": "me"}
    made = SubscriberSerializer(data=sent)
    assert made.is_valid(), made.errors
    row = made.save()
    (held,) = Subscriber.objects.claim_batch(1)
    assert (held.pk, held.priority) == (row.pk, 0)
    changed = SubscriberSerializer(
        Subscriber.objects.get(), data={**sent, "domain": "d"}, partial=True
    )
    assert changed.is_valid(), changed.errors
    changed.save()
    held.claim.complete()
    shown = SubscriberSerializer(Subscriber.objects.get()).data
    assert (shown["status"], shown["domain"], shown["iteration"]) == ("complete", "d", 0)


def test_a_serializer_that_declares_the_priority_writes_it() -> None:
    made = PrioritySerializer(data={"email": "a@example.com", "priority": 9})
    assert made.is_valid(), made.errors
    assert made.save().priority == 9
