"""The control room: one page for each model that can be claimed, and one of all, inside Django's admin.

``mounting`` has the overview and registers it, ``views`` has the page of one model and what a person can do there.
``snapshot`` reads all that a page shows within one time limit and prepares it for the templates, with ``failures``.
"""
