"""The app of the benchmarks."""

from django.apps import AppConfig


class BenchmarkConfig(AppConfig):
    """Keeps the benchmark's models under a label of their own."""

    name = "benchmarks.app"
    label = "bench"
