from django.db import migrations, models

from django_taskclaim.fields import CounterField, HolderField, MomentField, ShortTextField


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="NamedLease",
            fields=[
                ("name", HolderField(max_length=200, primary_key=True, serialize=False)),
                ("claimed_by", HolderField(default=None, max_length=200, null=True)),
                ("claimed_at", MomentField(default=None, null=True)),
                ("expires_at", MomentField(default=None, null=True)),
                ("iteration", CounterField(db_default=0, default=0)),
            ],
        ),
        migrations.CreateModel(
            name="RateLevel",
            fields=[
                ("scope", models.CharField(max_length=200, primary_key=True, serialize=False)),
                ("level", models.FloatField()),
                ("at", MomentField()),
            ],
        ),
        migrations.CreateModel(
            name="Switch",
            fields=[
                ("scope", models.CharField(max_length=200, primary_key=True, serialize=False)),
                ("paused_at", MomentField(default=None, null=True)),
                ("until", MomentField(default=None, null=True)),
                ("reason", ShortTextField(blank=True, default="", max_length=500)),
                ("by", HolderField(blank=True, default="", max_length=200)),
                ("batch_size", models.IntegerField(default=None, null=True)),
                ("lease", models.DurationField(default=None, null=True)),
                ("rate", models.CharField(default=None, max_length=40, null=True)),
                ("max_running", models.IntegerField(default=None, null=True)),
                ("hours", models.CharField(default=None, max_length=40, null=True)),
                ("set_at", MomentField(default=None, null=True)),
                ("set_by", HolderField(default=None, max_length=200, null=True)),
            ],
        ),
        migrations.CreateModel(
            name="WorkerProcess",
            fields=[
                ("name", HolderField(max_length=200, primary_key=True, serialize=False)),
                ("labels", models.JSONField(blank=True, default=list)),
                ("started_at", MomentField()),
                ("seen_at", MomentField(db_index=True)),
                ("command", models.CharField(blank=True, default="", max_length=20)),
                ("rows_held", models.IntegerField(default=0)),
                ("rows_done", models.BigIntegerField(default=0)),
                ("rows_failed", models.BigIntegerField(default=0)),
                ("last_error", ShortTextField(blank=True, default="", max_length=500)),
                ("throttles", models.JSONField(blank=True, default=list)),
            ],
        ),
        migrations.CreateModel(
            name="Control",
            fields=[],
            options={
                "verbose_name": "control room",
                "verbose_name_plural": "control room",
                "proxy": True,
                "default_permissions": (),
            },
            bases=("taskclaim.switch",),
        ),
    ]
