"""What is wrong with one model's claims on one database, and what to do about it; ``claimdoctor`` prints it.

What it finds are Django's check messages: an error is a problem, a warning is worth knowing (why nothing moves, or what
could be better), and an Info says that something is in order.
"""
