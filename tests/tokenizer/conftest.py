"""Paths to the vocabularies that are too large for the repository."""

from pathlib import Path

import pytest

SHARED = Path(__file__).parents[3] / "shared"


def shared_vocab(name):
    """Path of one of the reference vocabularies; skips the test when it is not there."""
    path = SHARED / "vocabs" / f"ggml-vocab-{name}.gguf"
    if not path.exists():
        pytest.skip(f"the reference vocabulary {path} is not here")
    return path
