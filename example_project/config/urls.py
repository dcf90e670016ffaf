"""The admin, and the pages on which editors review articles."""

from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

urlpatterns = [
    path("admin/", admin.site.urls),
    path("articles/", include("articles.urls")),
    path("", RedirectView.as_view(pattern_name="admin:photos_photo_changelist")),
]
