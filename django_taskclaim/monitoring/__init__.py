"""What people look at: the state of a model's rows, row counts, workers, and the database server itself.

Nothing here claims or writes a row.
"""
