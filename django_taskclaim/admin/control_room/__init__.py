"""The control room: one page for each model that can be claimed, and one of all, inside Django's admin.

``mounting`` says where the pages are, ``views`` what they answer and what a person can do there. ``snapshot`` reads all
that a page shows in one transaction; the other modules add what the templates need beside it.
"""
