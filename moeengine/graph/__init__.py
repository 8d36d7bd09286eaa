"""A forward pass as a list of blocks; arch/ has one file an architecture."""

from moeengine.graph.model import Context, Model, available, load_model

__all__ = ["Context", "Model", "available", "load_model"]
