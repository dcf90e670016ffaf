"""Where editors work."""

from django.contrib.auth.views import LoginView, LogoutView
from django.urls import path

from .views import EditArticle, MyArticles

urlpatterns = [
    path("", MyArticles.as_view(), name="articles"),
    path("<int:pk>/", EditArticle.as_view(), name="article"),
    path(
        "login/",
        LoginView.as_view(template_name="articles/login.html", next_page="articles"),
        name="login",
    ),
    path("logout/", LogoutView.as_view(next_page="login"), name="logout"),
]
