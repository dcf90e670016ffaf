# Written by makemigrations; the columns of TaskMixin, which no release changes, are taken from there.

from django.db import migrations, models

from django_taskclaim.indexes import ClaimIndex
from django_taskclaim.models import TaskMixin


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Article",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                *((field.name, field.clone()) for field in TaskMixin._meta.local_fields),
                ("source", models.CharField(editable=False, max_length=100, unique=True)),
                ("title", models.CharField(max_length=200)),
                ("text", models.TextField()),
                (
                    "verdict",
                    models.CharField(
                        choices=[
                            ("keep", "publish as it is"),
                            ("mend", "publish with my changes"),
                            ("drop", "leave it out"),
                        ],
                        max_length=10,
                    ),
                ),
                ("remark", models.CharField(blank=True, default="", max_length=300)),
            ],
            options={
                "abstract": False,
                "indexes": [
                    ClaimIndex(
                        fields=["status", "-priority", "not_before", "id"],
                        name="articles_ar_status_a04f02_clm",
                    )
                ],
            },
        ),
    ]
