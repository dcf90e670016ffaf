"""The admin of the photos: the mixin brings the claims, the rest is what any ModelAdmin has."""

import base64
from urllib.parse import urlsplit

from django.contrib import admin
from django.utils.html import format_html

from django_taskclaim.admin import ClaimAdminMixin

from .models import Photo


@admin.register(Photo)
class PhotoAdmin(ClaimAdminMixin, admin.ModelAdmin):
    """Pictures, and how far the work on them has got."""

    list_display = ["name", "picture", "size"]
    search_fields = ["url"]
    list_per_page = 50
    readonly_fields = ["picture", "size", "average_colour", "perceptual_hash"]
    fields = ["url", "priority", "picture", "size", "average_colour", "perceptual_hash"]

    @admin.display(description="name", ordering="url")
    def name(self, photo: Photo) -> str:
        """The address without its server."""
        return urlsplit(photo.url).path or photo.url

    @admin.display(description="picture")
    def picture(self, photo: Photo) -> str | None:
        """The thumbnail, once a worker has made it."""
        if not photo.thumbnail:
            return None
        data = base64.b64encode(photo.thumbnail).decode()
        return format_html('<img src="data:image/jpeg;base64,{}" alt="" height="32">', data)

    @admin.display(description="size")
    def size(self, photo: Photo) -> str | None:
        """Width and height."""
        return (
            f"{photo.width}\N{NO-BREAK SPACE}×\N{NO-BREAK SPACE}{photo.height}"
            if photo.width
            else None
        )
