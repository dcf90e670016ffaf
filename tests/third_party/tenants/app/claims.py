from django.db import connection

from django_taskclaim import handler
from tests.third_party.tenants.app.models import Invoice


@handler(Invoice, update_fields=["schema"])
def note_schema(invoice: Invoice) -> None:
    invoice.schema = connection.schema_name  # type: ignore[attr-defined]
