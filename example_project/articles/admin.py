"""The admin of the articles."""

from django.contrib import admin

from django_taskclaim.admin import ClaimAdminMixin

from .models import Article


@admin.register(Article)
class ArticleAdmin(ClaimAdminMixin, admin.ModelAdmin):
    """Who reviews what."""

    list_display = ["title", "verdict"]
    list_filter = ["verdict"]
    search_fields = ["title"]
