"""System checks: what is wrong with a project before its workers find out. Each has a hint that can be pasted.

========= ====================================================================================================
id        what it says
========= ====================================================================================================
E001      an entry of ``TASKCLAIM`` is unknown or has a value that makes no sense
E002      the default manager of a claimable model returns rows without the verbs
E003      a field or attribute of the user's replaces a claim column
E004      a field or attribute of the user's replaces ``row.claim``
E005      a model lacks claim columns, or ``claim_fields`` names a role or a column that does not exist
E006      a router keeps the tables of this app away from a database that holds a claimable model
E007      ``client_flag`` in OPTIONS takes away FOUND_ROWS (MySQL, MariaDB)
E008      the database has no claim of the kind that ``TASKCLAIM["CLAIM_STRATEGY"]`` asks for
E011      claim columns of one model lie on several tables
E012      a database that holds a claimable model has ``AUTOCOMMIT`` False
E013      the hook ``TASKCLAIM["REDACT"]`` cannot be imported or called, or returns no text
E014      a handler could not be registered while Django started: an option, its queryset or ``update_fields`` is wrong
E016      a database that holds a claimable model is of a kind that nothing is claimed on
E021      the buttons of ``ClaimAdminMixin`` need ``admin_actions`` in INSTALLED_APPS
E022      ``list_editable`` of a ModelAdmin with ``ClaimAdminMixin`` names a claim column, which verbs alone write
E031      a health check of a handler, or of ``TASKCLAIM["HEALTH_CHECKS"]``, leads to nothing, or to what is no check
E041      ``TASKCLAIM["HISTORY"]`` names what is no claimable model, or the app that keeps histories is not installed
E043      a router keeps the tables of the control app away from a database that holds a claimable model
E051      the archive of a handler is no installed model on a table of its own
E052      rows are to be open again on a model without ``RetryMixin``
E053      an archive lacks columns of the model, or needs some that the model does not have
E061      a companion (``SourceMixin``) has no link ``source``, or its manager no ``populate()``
E062      the link of a companion is not unique
E063      the link of a companion is a foreign key with a constraint into another database
E064      ``update_fields`` of a companion's handler names a column that both tables have, or one on another database
E071      a model of ranges names no source
E072      a model of ranges and its source are written to different databases
E073      a model of ranges inherits from another table
E074      nothing tells when a growing source has all rows of a range, or ``plan_ahead`` is no number of rows
W001      SQLite transactions do not begin IMMEDIATE
W002      OPTIONS ask for an isolation level under which handlers' transactions fail each other
W003      a lease is so short that renewals cannot keep up, or so long that a dead worker's rows stay stuck
W009      an atomic handler may hold up all other writers for longer than a quarter of its lease
W021      ``admin_actions`` comes after ``django.contrib.admin``, whose templates it must replace
W051      rows are deleted past Django, which would follow relations or call receivers
E101–E106 asked of the server, with ``--database`` only: it is too old for the claims (E101), a table has no
          transactions (E102), the binary log holds statements (E103), holders are not compared exactly (E104),
          the default isolation makes claims fail each other (E105), it cannot be written to (E106)
W107      a connection pooler, and server-side cursors are on (PostgreSQL)
W108      a Galera cluster (MariaDB)
========= ====================================================================================================

The ids are written ``taskclaim.E001``. Those from E101 on touch the database, so Django runs them for
``manage.py check --database default`` and ``migrate`` only; ``claimdoctor`` runs them always.
"""

from collections.abc import Sequence
from itertools import chain

from django.apps import apps
from django.core.checks import CheckMessage, Tags, register

from django_taskclaim.checks import databases as servers
from django_taskclaim.checks import handlers, models, settings, sources
from django_taskclaim.checks.messages import TAG
from django_taskclaim.columns import has_claim_columns

__all__ = ["TAG", "check_project", "check_servers"]


@register(TAG)
def check_project(**kwargs: object) -> list[CheckMessage]:
    """What the project's code and settings show; no database is asked."""
    # Proxies are included: they may have managers of their own.
    claimable = [model for model in apps.get_models() if has_claim_columns(model)]
    unusable = [*settings.check_settings(), *servers.check_aliases()]
    found = [*unusable, *chain.from_iterable(map(models.problems_of, claimable))]
    # The others need the settings and the databases.
    if not unusable:
        found += handlers.check_handlers()
        found += chain.from_iterable(map(sources.problems_of, claimable))
        found += settings.check_hooks()
        found += servers.check_databases()
    return found


# Not under our own tag as well: Django 6.1 asks every server when a tag is named.
@register(Tags.database)
def check_servers(databases: Sequence[str] | None = None, **kwargs: object) -> list[CheckMessage]:
    """What the servers themselves answer: the ids from E101 on."""
    if not databases or settings.check_settings() or any(servers.check_aliases()):
        return []
    return list(servers.check_servers(databases))
