"""The blocks of ``docs/third-party.md`` that begin with ``# serializers.py``."""

from tests.third_party import recipes

globals().update(recipes.run(recipes.blocks("serializers.py"), __name__))
