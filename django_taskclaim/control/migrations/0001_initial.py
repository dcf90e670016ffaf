import uuid

from django.db import migrations, models

import django_taskclaim.fields


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="ClaimEvent",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("model", models.CharField(max_length=200)),
                ("key", django_taskclaim.fields.HolderField(max_length=255)),
                ("event", models.CharField(max_length=20)),
                ("holder", django_taskclaim.fields.HolderField(default="", max_length=200)),
                ("iteration", models.IntegerField(default=None, null=True)),
                ("at", django_taskclaim.fields.MomentField()),
                ("detail", django_taskclaim.fields.ShortTextField(default="", max_length=500)),
            ],
            options={
                "db_table": "taskclaim_claimevent",
                "default_permissions": (),
                "indexes": [
                    models.Index(fields=["model", "key", "id"], name="taskclaim_event_of_row")
                ],
            },
        ),
        migrations.CreateModel(
            name="OperatorAct",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("at", django_taskclaim.fields.MomentField()),
                ("model", models.CharField(max_length=200)),
                ("act", models.CharField(max_length=50)),
                ("rows", models.BigIntegerField(default=0)),
                ("by", django_taskclaim.fields.HolderField(max_length=200)),
                ("reason", django_taskclaim.fields.ShortTextField(default="", max_length=500)),
                ("key", django_taskclaim.fields.HolderField(default="", max_length=255)),
            ],
            options={
                "db_table": "taskclaim_operatoract",
                "permissions": [
                    ("view_control", "Can look at the control page"),
                    ("operate", "Can pause, resume, reset and release, and command workers"),
                    ("configure", "Can change settings that override handlers"),
                ],
                "default_permissions": ("view",),
                "indexes": [models.Index(fields=["model", "id"], name="taskclaim_act_of_model")],
            },
        ),
        migrations.CreateModel(
            name="ThroughputMinute",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, primary_key=True, serialize=False)),
                ("model", models.CharField(max_length=200)),
                ("at", django_taskclaim.fields.MomentField()),
                ("process", django_taskclaim.fields.HolderField(default="", max_length=200)),
                ("counts", models.JSONField(default=dict)),
            ],
            options={
                "db_table": "taskclaim_throughput",
                "default_permissions": (),
                "indexes": [models.Index(fields=["at"], name="taskclaim_throughput_at")],
            },
        ),
    ]
