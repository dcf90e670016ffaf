"""The forked app of ``docs/third-party.md``."""

from tests.third_party import recipes

globals().update(recipes.run(recipes.blocks("catalogue/models.py"), __name__))
