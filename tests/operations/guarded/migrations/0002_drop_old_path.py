from django.db import migrations

from django_taskclaim.operations import RequireComplete


class Migration(migrations.Migration):
    dependencies = [("guarded", "0001_initial")]

    operations = [
        RequireComplete("guarded.Photo"),
        migrations.RemoveField("photo", "old_path"),
    ]
