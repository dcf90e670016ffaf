"""The blocks of ``docs/third-party.md`` that begin with ``# resources.py``."""

from tests.third_party import recipes

globals().update(recipes.run(recipes.blocks("resources.py"), __name__))
