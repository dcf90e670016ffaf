"""A small site that reads and writes the table that workers claim from; the tests' settings with its URLs."""

from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from tests.testapp.models import Job


def page(request: HttpRequest) -> HttpResponse:
    """Something for a browser to stand on."""
    return HttpResponse("<!doctype html><title>site</title><p>a site", content_type="text/html")


def latest(request: HttpRequest) -> JsonResponse:
    rows: list[Any] = list(Job.objects.order_by("-pk").values("pk", "status")[:20])
    return JsonResponse({"rows": rows})


@csrf_exempt
def add(request: HttpRequest) -> JsonResponse:
    """What a visitor does: one row more for the worker."""
    return JsonResponse({"pk": Job.objects.create(note="visitor").pk})


urlpatterns = [path("", page), path("latest/", latest), path("add/", add)]
