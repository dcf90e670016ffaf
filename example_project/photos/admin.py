"""The admin of the photos: the mixin brings the claims, the rest is what any ModelAdmin has."""

from base64 import b64encode

from django.contrib import admin
from django.utils.html import format_html

from django_taskclaim.admin import ClaimAdminMixin

from .models import Photo


@admin.register(Photo)
class PhotoAdmin(ClaimAdminMixin, admin.ModelAdmin):
    """Pictures, and how far the work on them has got."""

    list_display = ["__str__", "picture", "width", "height"]
    ordering = ["pk"]
    search_fields = ["url"]
    list_per_page = 50
    fields = ["url", "picture", "width", "height", "average_colour"]
    readonly_fields = fields[1:]

    def picture(self, photo: Photo) -> str | None:
        """The thumbnail, once a worker has made it."""
        if not photo.thumbnail:
            return None
        data = b64encode(photo.thumbnail).decode()
        return format_html('<img src="data:image/jpeg;base64,{}" alt="" height="32">', data)
