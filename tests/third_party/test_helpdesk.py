"""Tickets of django-helpdesk, triaged by a worker, with a queue of our own that links to them."""

import pytest
from helpdesk.models import FollowUp, Queue, Ticket

from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.testing import run_due
from tests.third_party.app.models import Escalation, TicketTriage

pytestmark = pytest.mark.django_db


def test_tickets_are_triaged_escalated_merged_and_deleted() -> None:
    queue = Queue.objects.create(title="Help", slug="help")
    fire = Ticket.objects.create(title="a", queue=queue, description="A fire!")
    calm = Ticket.objects.create(title="b", queue=queue, description="A question")
    assert TicketTriage.objects.populate(Ticket.objects.all()) == 2
    run_due(TicketTriage)
    fire.refresh_from_db()
    assert fire.priority == 1
    assert [*TicketTriage.objects.values_list("urgent", "source__priority")] == [
        (True, 1),
        (False, 3),
    ]
    Escalation.objects.create(ticket=fire)
    run_due(Escalation)
    assert [*FollowUp.objects.values_list("ticket", "title")] == [(fire.pk, "Escalated")]
    calm.merged_to = fire
    calm.status = Ticket.DUPLICATE_STATUS
    calm.save()
    TicketTriage.objects.reset(complete=True)
    (held, _other) = TicketTriage.objects.claim_batch(2)
    fire.delete()
    assert (TicketTriage.objects.count(), Escalation.objects.count()) == (1, 0)
    with pytest.raises(ClaimLost):
        held.complete()
