"""The documentation site: ``tox -e docs`` builds it into ``docs/_build/html``."""

import django
from django.conf import settings

import django_taskclaim

# The reference is read from the docstrings, and Django's models need settings to be imported.
settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_taskclaim"],
    USE_TZ=True,
)
django.setup()

project = "django-taskclaim"
author = "The django-taskclaim authors"
copyright = author
version = release = django_taskclaim.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
# No page links to these indexes. The search finds the names.
html_use_index = html_domain_indices = False
# The default underlines modules in code, as if they were links.
pygments_dark_style = "monokai"
html_title = f"django-taskclaim {version}"

# Headings can be linked to as on the pages of a code host, so each page reads well by itself, too.
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_preserve_defaults = True
