"""Conditions under which a test cannot say anything."""

from pathlib import Path

import pytest

_MAPS = Path("/proc/self/maps").read_text()

without_sanitizer = pytest.mark.skipif(
    "libasan" in _MAPS or "libclang_rt.asan" in _MAPS,
    reason="the address sanitizer keeps freed memory, reserves address space, ignores mlock and handles signals",
)
