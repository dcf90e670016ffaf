"""What the test of tenants does, in a process that has their settings: ``make`` or ``look``, and JSON comes back."""

import json
import sys

import django

django.setup()

from django.core.management import call_command  # noqa: E402
from django.db import connection  # noqa: E402
from django_tenants.utils import schema_context  # noqa: E402

from tests.third_party.tenants.app.models import Invoice  # noqa: E402
from tests.third_party.tenants.customers.models import Customer  # noqa: E402

TENANTS = ("acme", "bolt")

if sys.argv[1] == "make":
    call_command("migrate_schemas", shared=True, run_syncdb=True, verbosity=0)
    for name in TENANTS:
        Customer(schema_name=name).save()
        connection.cursor().execute(f"CREATE SCHEMA {name}")
        call_command("migrate_schemas", tenant=True, schema_name=name, run_syncdb=True, verbosity=0)
        with schema_context(name):
            Invoice.objects.bulk_create(Invoice(total=i) for i in range(20))
seen = {}
for name in TENANTS:
    with schema_context(name):
        seen[name] = sorted({*Invoice.objects.values_list("schema", "status")})
print(json.dumps(seen))
