"""Pages on which people work through rows, to build on: views, template tags, templates, a ping from the browser.

Add ``"django_taskclaim.contrib.review"`` to INSTALLED_APPS for its templates, tags and static files.
"""
