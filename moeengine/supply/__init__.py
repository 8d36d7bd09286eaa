"""How expert bytes reach the kernels: one file in supply/modes a mode, one contract (base.pxd).

A mode's module offers `make(settings) -> ExpertSupply`, where settings is an EngineConfig.
"""

import importlib
import pkgutil

from moeengine.errors import ConfigError
from moeengine.supply import modes


def available():
    """Modes that exist: the names of the files in supply/modes."""
    return sorted(m.name.replace("_", "-") for m in pkgutil.iter_modules(modes.__path__))


def make_supply(mode, settings):
    """An ExpertSupply that is not bound yet.

    mode : str      one of `available()`; ConfigError otherwise
    settings :      EngineConfig; a mode reads what concerns it
    """
    if mode not in available():
        raise ConfigError(f"moe_mode: found {mode!r}, expected one of auto, {', '.join(available())}")
    module = importlib.import_module(f"moeengine.supply.modes.{mode.replace('-', '_')}")
    return module.make(settings)
