"""What the control page shows and does: an app of its own to install, ``"django_taskclaim.control"``.

Without it workers ask and write nothing more than they do anyway, and the acts of operators go to the log alone. Its
tables live on every database that holds a claimable model.
"""
