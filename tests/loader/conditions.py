"""Conditions under which a test cannot say anything."""

from pathlib import Path

import pytest

without_sanitizer = pytest.mark.skipif(
    "libasan" in Path("/proc/self/maps").read_text(),
    reason="the address sanitizer keeps freed memory, reserves address space and ignores mlock",
)
