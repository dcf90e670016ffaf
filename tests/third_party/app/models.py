"""The models of ``docs/third-party.md``: its blocks that begin with ``# models.py``, one after the other."""

from tests.third_party import recipes

globals().update(recipes.models_of(recipes.blocks("models.py"), __name__))
