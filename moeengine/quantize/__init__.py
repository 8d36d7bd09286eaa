"""Rounds weights to quant types and rewrites GGUF files in them."""

from . import iq2_xxs, k_quants, plain  # noqa: F401  (each registers its types)
from .blocks import available, quant_type, quantize

__all__ = ["available", "quant_type", "quantize"]
