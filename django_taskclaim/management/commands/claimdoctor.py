"""Examine the claims of models: tables, indexes, server settings, and why nothing is moving.

A missing index is reported with the statement that creates it. Nothing is changed.

Examples:
  manage.py claimdoctor                     every claimable model
  manage.py claimdoctor photos.Photo        one model
  manage.py claimdoctor --database replica2

Signs:
  !!  a problem, and below it what to do
  ..  worth knowing: a reason for which rows stay where they are, or something that could be better
  ok  in order

Exit codes:
  0    no problem was found
  1    there are problems
  2    wrong usage
  130  stopped by Ctrl-C

"""

from collections.abc import Iterable
from itertools import chain

from django.core import checks
from django.core.management.base import CommandError
from django.db import Error

from django_taskclaim.checks import check_project
from django_taskclaim.doctor import examine, server_findings
from django_taskclaim.formatting import counted, first_line
from django_taskclaim.management.base import ClaimCommand


class Command(ClaimCommand):
    def handle(self, **options: object) -> None:
        levels = self._report("The project", check_project())
        for alias in dict.fromkeys(alias for _, alias in self.where):
            levels += self._report(f"The database {alias}", server_findings(alias))
        for model, alias in self.where:
            levels += self._report(f"{model._meta.label} on {alias}", examine(model, alias))
        if problems := sum(level >= checks.ERROR for level in levels):
            raise CommandError(f"{counted(problems, 'problem')} found.")
        notes = sum(level >= checks.WARNING for level in levels)
        also = f", {counted(notes, 'thing')} worth knowing" if notes else ""
        self.stdout.write(self.style.SUCCESS(f"No problem found{also}."))

    def _report(self, title: str, findings: Iterable[checks.CheckMessage]) -> list[int]:
        """Write the findings that are not silenced, if there are any, and return their levels.

        A database that does not answer is a finding, not an exception.
        """
        found: list[checks.CheckMessage] = []
        try:
            for finding in findings:
                found += [] if finding.is_silenced() else [finding]
        except Error as error:
            text = f"The database refused a question: {first_line(error)}"
            found.append(checks.Error(text, "Look at the server and at DATABASES, then ask again."))
        if found:
            self.stdout.write(self.style.MIGRATE_HEADING(title))
            for line in chain.from_iterable(map(self.finding_lines, found)):
                self.stdout.write(f"  {line}")
            self.stdout.write("")
        return [finding.level for finding in found]
