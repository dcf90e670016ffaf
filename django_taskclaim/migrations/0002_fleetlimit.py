from django.db import migrations, models

import django_taskclaim.fields


class Migration(migrations.Migration):
    dependencies = [("taskclaim", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="FleetLimit",
            fields=[
                ("scope", models.CharField(max_length=200, primary_key=True, serialize=False)),
                ("rate", models.CharField(default=None, max_length=40, null=True)),
                ("max_running", models.IntegerField(default=None, null=True)),
                ("hours", models.CharField(default=None, max_length=40, null=True)),
                ("set_at", django_taskclaim.fields.MomentField(default=None, null=True)),
                (
                    "set_by",
                    django_taskclaim.fields.HolderField(blank=True, default="", max_length=200),
                ),
                ("level", models.FloatField(default=0.0)),
                ("filled_at", django_taskclaim.fields.MomentField(default=None, null=True)),
            ],
            options={
                "db_table": "taskclaim_fleetlimit",
            },
        ),
    ]
