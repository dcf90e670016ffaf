from django.db import migrations, models

import django_taskclaim.fields


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="NamedLease",
            fields=[
                (
                    "name",
                    django_taskclaim.fields.HolderField(
                        max_length=200, primary_key=True, serialize=False
                    ),
                ),
                (
                    "claimed_by",
                    django_taskclaim.fields.HolderField(default=None, max_length=200, null=True),
                ),
                ("claimed_at", django_taskclaim.fields.MomentField(default=None, null=True)),
                ("expires_at", django_taskclaim.fields.MomentField(default=None, null=True)),
                ("iteration", django_taskclaim.fields.CounterField(db_default=0, default=0)),
            ],
            options={"db_table": "taskclaim_namedlease"},
        ),
        migrations.CreateModel(
            name="RateLevel",
            fields=[
                ("scope", models.CharField(max_length=200, primary_key=True, serialize=False)),
                ("level", models.FloatField()),
                ("at", django_taskclaim.fields.MomentField()),
            ],
            options={"db_table": "taskclaim_ratelevel"},
        ),
        migrations.CreateModel(
            name="Switch",
            fields=[
                ("scope", models.CharField(max_length=200, primary_key=True, serialize=False)),
                ("paused_at", django_taskclaim.fields.MomentField(default=None, null=True)),
                ("until", django_taskclaim.fields.MomentField(default=None, null=True)),
                (
                    "reason",
                    django_taskclaim.fields.ErrorClassField(blank=True, default="", max_length=500),
                ),
                ("by", django_taskclaim.fields.HolderField(blank=True, default="", max_length=200)),
                ("batch_size", models.IntegerField(default=None, null=True)),
                ("lease", models.DurationField(default=None, null=True)),
                ("rate", models.CharField(default=None, max_length=40, null=True)),
                ("max_running", models.IntegerField(default=None, null=True)),
                ("hours", models.CharField(default=None, max_length=40, null=True)),
                ("set_at", django_taskclaim.fields.MomentField(default=None, null=True)),
                (
                    "set_by",
                    django_taskclaim.fields.HolderField(default=None, max_length=200, null=True),
                ),
            ],
            options={
                "verbose_name": "switch",
                "verbose_name_plural": "switches",
                "db_table": "taskclaim_switch",
            },
        ),
        migrations.CreateModel(
            name="WorkerProcess",
            fields=[
                (
                    "name",
                    django_taskclaim.fields.HolderField(
                        max_length=200, primary_key=True, serialize=False
                    ),
                ),
                ("labels", models.JSONField(blank=True, default=list)),
                ("started_at", django_taskclaim.fields.MomentField()),
                ("seen_at", django_taskclaim.fields.MomentField(db_index=True)),
                ("command", models.CharField(blank=True, default="", max_length=20)),
                ("rows_held", models.IntegerField(default=0)),
                ("rows_done", models.BigIntegerField(default=0)),
                ("rows_failed", models.BigIntegerField(default=0)),
                (
                    "last_error",
                    django_taskclaim.fields.ErrorClassField(blank=True, default="", max_length=500),
                ),
                ("throttles", models.JSONField(blank=True, default=list)),
            ],
            options={
                "verbose_name_plural": "worker processes",
                "db_table": "taskclaim_workerprocess",
            },
        ),
        migrations.CreateModel(
            name="Control",
            fields=[],
            options={
                "verbose_name": "control room",
                "verbose_name_plural": "control room",
                "db_table": "taskclaim_switch",
                "proxy": True,
                "default_permissions": (),
                "indexes": [],
                "constraints": [],
            },
            bases=("taskclaim.switch",),
        ),
    ]
