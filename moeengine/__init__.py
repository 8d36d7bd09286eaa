"""Run Mixture-of-Experts language models from GGUF files on an ordinary CPU.

The public names below are imported on first use, so that `import moeengine` costs nothing.
"""

import logging
from importlib import import_module

logging.getLogger("moeengine").addHandler(logging.NullHandler())  # printing is the program's choice
__version__ = "0.1.0"

_PUBLIC = {
    "Engine": "engine",
    "Session": "engine",
    "Stream": "engine",
    "Completion": "engine",
    "TokenLogprob": "sampling",
    "EngineConfig": "config",
    "GenerationParams": "config",
    "SamplingParams": "config",
    "Tokenizer": "tokenizer",
    "MoeEngineError": "errors",
    "ConfigError": "errors",
    "GGUFError": "errors",
    "UnsupportedError": "errors",
    "ContextOverflowError": "errors",
    "NumericError": "errors",
    "SupplyError": "errors",
    "ClosedError": "errors",
    "CancelledError": "errors",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name):
    if name not in _PUBLIC:
        raise AttributeError(f"module 'moeengine' has no attribute {name!r}")
    return getattr(import_module(f"moeengine.{_PUBLIC[name]}"), name)


def __dir__():
    return sorted([*globals(), *_PUBLIC])
