"""More models of the test app, for what no shape has: columns of every kind, joins that repeat rows, deep families.

Only tests import them, while they are collected, so they are known before the test databases are made.
"""

import uuid
from typing import Any

from django.contrib.contenttypes.fields import GenericRelation
from django.core.files.storage import InMemoryStorage
from django.db import connection, models
from django.db.models.functions import Concat

from django_taskclaim.fields import MomentField
from django_taskclaim.models import TaskMixin
from django_taskclaim.querysets import ClaimManager
from tests.testapp.models import Author, Child, Payload, ReservedWords, UuidKey, VisibleManager


class ShoutedField(models.CharField):
    """A field that prepares its own value, as fields of third parties do."""

    def pre_save(self, model_instance: models.Model, add: bool) -> Any:
        value = getattr(model_instance, self.attname).upper()
        setattr(model_instance, self.attname, value)
        return value


class EveryField(TaskMixin):
    """Columns whose values the databases want prepared in different ways."""

    amount = models.DecimalField(max_digits=10, decimal_places=3, null=True)
    reference = models.UUIDField(default=uuid.uuid4, null=True)
    facts = models.JSONField(null=True)
    blob = models.BinaryField(null=True)
    moment = models.DateTimeField(null=True)
    day = models.DateField(null=True)
    span = models.DurationField(null=True)
    ratio = models.FloatField(null=True)
    flag = models.BooleanField(null=True)
    big = models.BigIntegerField(null=True)
    text = models.TextField(null=True)
    shouted = ShoutedField(max_length=50, default="")
    changed = models.DateTimeField(auto_now=True)
    document = models.FileField(storage=InMemoryStorage(), max_length=100)
    author = models.ForeignKey(Author, on_delete=models.CASCADE, null=True)


class AnyTypeField(models.Field):
    """A column of the type that a test gives it."""

    kind = "varchar(5)"

    def db_type(self, connection: Any) -> str:
        return self.kind


class ShortKey(models.Model):
    code = models.CharField(max_length=5, primary_key=True)


class Narrow(TaskMixin):
    """Columns that hold little."""

    code = models.CharField(max_length=5, default="")
    folded = models.CharField(
        max_length=5,
        default="",
        db_collation={"postgresql": "C", "mysql": "utf8mb4_bin"}.get(connection.vendor, "nocase"),
    )
    of_any_type = AnyTypeField(null=True)
    target = models.ForeignKey(ShortKey, on_delete=models.CASCADE, null=True, db_constraint=False)
    doubled = models.GeneratedField(
        expression=Concat("code", "code"),
        output_field=models.CharField(max_length=10),
        db_persist=True,
    )


class FoldedField(models.CharField):
    """Text in an order that is not Python's, where the server has such a collation: some are built without ICU."""

    def db_parameters(self, connection: Any) -> Any:
        collation = {"mysql": "utf8mb4_general_ci", "sqlite": "nocase"}.get(connection.vendor)
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT MIN(collname) FROM pg_collation WHERE collname = 'und-x-icu'"
                )
                (collation,) = cursor.fetchone()
        return super().db_parameters(connection) | {"collation": collation}


class FoldedKey(TaskMixin):
    """Keys that the database does not have in Python's order."""

    key = FoldedField(primary_key=True, max_length=50)


class Label(models.Model):
    name = models.CharField(max_length=20)


class Labelled(TaskMixin, Payload):
    """A join over its labels shows a row once for each of them. What people did to it goes with it."""

    labels = models.ManyToManyField(Label)
    history = GenericRelation("admin.LogEntry")


class OneToOneKey(TaskMixin, Payload):
    """Its key is another table's."""

    author = models.OneToOneField(Author, on_delete=models.CASCADE, primary_key=True)


class UuidLinks(TaskMixin):
    """Its key, and another link, have the values of UUIDs."""

    twin = models.OneToOneField(UuidKey, models.CASCADE, primary_key=True, related_name="+")
    album = models.ForeignKey(UuidKey, on_delete=models.CASCADE, related_name="+")


class OrderedParent(Payload):
    class Meta:
        ordering = ["-note"]


class ChildOfOrdered(OrderedParent, TaskMixin):
    """Ordering by the link to its parent would order by the parent's own ordering."""


class GrandChild(Child):
    """Two tables away from its claim columns."""

    more = models.TextField(blank=True, default="")


class GrandChildProxy(GrandChild):
    class Meta:
        proxy = True


class TwoParents(Author, ReservedWords):
    """Its own key is that of one parent, and its claim goes by that of the other."""


class ChildOfTwo(TwoParents):
    """Its claim goes by neither its own key nor that of its nearest parent."""


class HiddenFromAll(TaskMixin, Payload):
    """Not even its base manager shows all of its rows."""

    hidden = models.BooleanField(default=False)

    objects = VisibleManager()
    everything = ClaimManager()

    class Meta:
        base_manager_name = "objects"


class WhisperedField(models.CharField):
    """Is read by an expression, as the fields of GeoDjango and encrypted ones are."""

    def select_format(self, compiler: Any, sql: str, params: Any) -> Any:
        return f"LOWER({sql})", params


class Parcel(TaskMixin, Payload):
    """Other rows look at it, so that deleting it concerns them."""

    sender = WhisperedField(max_length=50, default="ADA")
    #: The name of many an annotation.
    n = models.IntegerField(default=0)
    weight = models.DecimalField(max_digits=6, decimal_places=2, default=1)
    facts = models.JSONField(null=True)


class Stamp(models.Model):
    """Goes with its parcel."""

    parcel = models.ForeignKey(Parcel, on_delete=models.CASCADE)


class Complaint(models.Model):
    """Outlives its parcel."""

    parcel = models.ForeignKey(Parcel, on_delete=models.SET_NULL, null=True)


class Receipt(models.Model):
    """Keeps its parcel from being deleted."""

    parcel = models.ForeignKey(Parcel, on_delete=models.PROTECT)


class Archived(models.Model):
    """What archives of several shapes have in common."""

    note = models.TextField()
    counter = models.IntegerField()
    status = models.CharField(max_length=20)
    claimed_by = models.CharField(max_length=200)
    completed_at = MomentField()
    archived_at = models.DateTimeField(auto_now_add=True)
    reason = models.CharField(max_length=20, default="done")
    seen = models.BooleanField(null=True)
    kind = models.CharField(max_length=20, db_default="plain")

    class Meta:
        abstract = True


class ParcelArchive(Archived):
    sender = models.CharField(max_length=50)
    n = models.IntegerField(default=0)
    weight = models.DecimalField(max_digits=6, decimal_places=2)
    facts = models.JSONField(null=True)


class CompositeArchive(Archived):
    """Has a key of its own, and the parts of the other as plain columns."""

    number_kept = models.BigAutoField(primary_key=True)
    tenant = models.IntegerField()
    number = models.IntegerField()


class ChildArchive(Archived):
    """One table for what was in two."""

    id = models.BigIntegerField(primary_key=True)
    extra = models.TextField()


class Notice(TaskMixin):
    """Keeps when it was made."""

    made_at = models.DateTimeField(auto_now_add=True)


class SealedField(models.TextField):
    """Keeps what nobody can open any more, as an encrypted field does once its key was changed."""

    def from_db_value(self, value: Any, *args: Any) -> Any:
        if value == "broken":
            raise ValueError("the seal is broken")
        return value


class Sealed(TaskMixin, Payload):
    secret = SealedField(default="fine")
    seen_at = models.DateTimeField(null=True)


class SealedChild(Sealed):
    extra = models.TextField(blank=True, default="")
