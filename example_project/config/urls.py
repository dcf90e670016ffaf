"""The admin, the pages on which editors review articles, and the pictures of the demo."""

from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView
from photos.demo.site import picture

urlpatterns = [
    path("admin/", admin.site.urls),
    path("articles/", include("articles.urls")),
    path("pictures/<int:number>.jpg", picture),
    path("", RedirectView.as_view(pattern_name="admin:photos_photo_changelist")),
]
