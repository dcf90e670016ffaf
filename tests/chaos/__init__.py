"""Real workers under real faults, and an oracle that says from the database alone whether a promise was broken.

``python -m tests.chaos --seconds 60 --seed 7`` runs it; ``docs/reliability.md`` tells what it does.
"""
