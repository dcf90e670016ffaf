"""The two pages; what is special here is the words, not the claims."""

from datetime import timedelta
from typing import Any

from django import forms
from django.contrib.auth import get_user_model
from django.urls import reverse_lazy

from django_taskclaim.contrib.review.views import HeldRowView, MyWorkView

from .models import Article

#: How long an article stays with an editor who has closed the page.
LEASE = timedelta(minutes=30)


class ArticleForm(forms.ModelForm):
    """What an editor may change."""

    verdict = forms.ChoiceField(
        choices=Article.Verdict.choices, widget=forms.RadioSelect, required=False
    )

    class Meta:
        model = Article
        fields = ["title", "text", "verdict", "remark"]
        widgets = {"text": forms.Textarea(attrs={"rows": 18})}


class MyArticles(MyWorkView):
    """Five articles at a time."""

    model = Article
    row_url_name = "article"
    template_name = "articles/my_articles.html"
    batch_size = 5
    lease = LEASE


class EditArticle(HeldRowView):
    """One article."""

    model = Article
    form_class = ArticleForm
    success_url = reverse_lazy("articles")
    lease = LEASE

    def get_form(self, form_class: Any = None) -> Any:
        """Half of the work can be saved; what is finished has a verdict."""
        form = super().get_form(form_class)
        form.fields["verdict"].required = self.request.POST.get("act") == "finish"
        return form

    def colleagues(self) -> Any:
        """The other editors."""
        editors = get_user_model()._default_manager.filter(groups__name="Editors")
        return editors.exclude(pk=self.request.user.pk).order_by("first_name")
