from django.db import migrations, models

KEY = models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Parcel",
            fields=[("id", KEY.clone()), ("address", models.CharField(max_length=100))],
        ),
        migrations.CreateModel(
            name="Letter",
            fields=[
                ("id", KEY.clone()),
                ("status", models.CharField(default="written", max_length=20)),
            ],
            options={"db_table": "group"},
        ),
        migrations.CreateModel(
            name="Taken",
            fields=[
                ("id", KEY.clone()),
                ("status", models.CharField(default="new", max_length=20)),
            ],
        ),
    ]
