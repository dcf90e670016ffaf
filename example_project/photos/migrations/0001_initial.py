# Written by makemigrations; the columns of TaskMixin, which no release changes, are taken from there.

from django.db import migrations, models

from django_taskclaim.indexes import ClaimIndex
from django_taskclaim.models import TaskMixin


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Photo",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                *((field.name, field.clone()) for field in TaskMixin._meta.local_fields),
                ("url", models.URLField(max_length=500)),
                ("width", models.IntegerField(null=True)),
                ("height", models.IntegerField(null=True)),
                ("average_colour", models.CharField(max_length=7, null=True)),
                ("thumbnail", models.BinaryField(null=True)),
            ],
            options={
                "abstract": False,
                "indexes": [
                    ClaimIndex(
                        fields=["status", "-priority", "not_before", "id"],
                        name="photos_phot_status_2dcafb_clm",
                    )
                ],
            },
        ),
    ]
