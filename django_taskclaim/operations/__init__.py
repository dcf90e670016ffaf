"""Operations for migrations of yours. Migrations name them, so this import path never changes."""

from django_taskclaim.operations.calling import CallOnInsert
from django_taskclaim.operations.requiring import NotComplete, RequireComplete

__all__ = ["CallOnInsert", "NotComplete", "RequireComplete"]
