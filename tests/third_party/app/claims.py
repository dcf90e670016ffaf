"""The handlers of ``docs/third-party.md``: its blocks that begin with ``# claims.py``."""

from tests.third_party import recipes

recipes.run(recipes.blocks("claims.py"), __name__)
