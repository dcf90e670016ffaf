"""Giving claim columns and their index to a table that is in use, without an outage.

Users' migrations name the classes of ``adoption.operations``, so that import path and their stored form never change.
Nothing is imported here: a migration file must not load more than it needs.
"""
