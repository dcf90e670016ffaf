"""A lease that follows how long people really take."""

from datetime import timedelta
from typing import Any

from django.db.models import Q

from django_taskclaim.claim import clock
from django_taskclaim.columns import claim_columns
from django_taskclaim.states import WORKER_MARK, Status

#: Seconds for which an answer is good.
GOOD_FOR = 300.0


class ObservedLease:
    """For ``lease`` of a view: as long as *share* of the latest *last* completions by people took, within bounds.

        class MyArticles(MyWorkView):
            lease = ObservedLease(at_least=timedelta(minutes=10), at_most=timedelta(hours=4))

    It counts from the claim to the completion, so on a desk of five rows the last one has taken as long as all five.
    *at_most* is the lease until there are ten completions. It needs ``CompletedAtMixin``, sorts the complete rows that
    the view's queryset finds, and asks every five minutes in each process.
    """

    def __init__(
        self,
        *,
        at_least: timedelta = timedelta(minutes=10),
        at_most: timedelta = timedelta(hours=4),
        share: float = 0.9,
        last: int = 200,
    ) -> None:
        if not timedelta(0) < at_least <= at_most or not 0 < share <= 1 or last < 10:
            raise ValueError(
                "ObservedLease needs 0 < at_least <= at_most, 0 < share <= 1 and last >= 10."
            )
        self.at_least, self.at_most, self.share, self.last = at_least, at_most, share, last
        self._known: dict[Any, tuple[float, timedelta]] = {}

    def __call__(self, rows: Any) -> timedelta:
        """Return the lease for *rows*, a queryset."""
        place = (rows.model, rows.db)
        asked_at, found = self._known.get(place, (float("-inf"), self.at_most))
        if clock() - asked_at > GOOD_FOR:
            found = self._observed(rows)
            self._known[place] = clock(), found
        return found

    def _observed(self, rows: Any) -> timedelta:
        columns = claim_columns(rows.model)
        if columns.completed_at is None:
            raise TypeError(f"{rows.model.__name__} has no completed_at; add CompletedAtMixin.")
        ended, begun = columns.completed_at.name, columns.claimed_at.name
        by_people = ~Q(**{f"{columns.claimed_by.name}__contains": WORKER_MARK})
        done = rows.filter(by_people, **{columns.status.name: Status.COMPLETE})
        done = done.filter(**{f"{begun}__isnull": False}).order_by(f"-{ended}")
        took: list[timedelta] = sorted(
            end - start for end, start in done.values_list(ended, begun)[: self.last]
        )
        if len(took) < 10:
            return self.at_most
        wanted = took[min(len(took) - 1, int(len(took) * self.share))]
        return max(self.at_least, min(wanted, self.at_most))
