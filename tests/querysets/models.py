"""The models of ``tests.testapp.odd_models``, under the name that the tests of behaviour know."""

from tests.testapp.odd_models import *  # noqa: F403
