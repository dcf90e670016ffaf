"""Pages on which people work through rows, to build on: views and templates.

Add ``"django_taskclaim.contrib.review"`` to INSTALLED_APPS for its templates, tags and static files.
"""
