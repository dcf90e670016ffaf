from django.db import migrations, models

from tests.operations.columns import CLAIM_COLUMNS


class Migration(migrations.Migration):
    initial = True

    operations = [
        migrations.CreateModel(
            "Photo",
            [
                ("id", models.BigAutoField(primary_key=True)),
                ("country", models.CharField(max_length=2, default="")),
                ("old_path", models.CharField(max_length=50, default="")),
                *CLAIM_COLUMNS,
            ],
        ),
    ]
