from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("taskclaim", "0002_fleetlimit")]

    operations = [
        migrations.AddField(
            model_name="workerprocess",
            name="connections",
            field=models.IntegerField(db_default=0, default=0),
        ),
    ]
