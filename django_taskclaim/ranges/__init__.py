"""What people are shown of ranges."""

from django_taskclaim.ranges.strip import Strip, strip

__all__ = ["Strip", "strip"]
