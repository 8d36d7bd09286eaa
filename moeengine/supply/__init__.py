"""How expert bytes reach the kernels: one file in supply/modes a mode, one contract (base.pxd).

A mode's module offers `make(settings) -> ExpertSupply`, where settings is an EngineConfig, and SETTINGS, the names
of those that mean something in it and not in every mode.
"""

import importlib
import pkgutil

from moeengine.config import EngineConfig
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
    return _module(mode).make(settings)


def unused_settings(mode, settings):
    """Names of settings that are not at their defaults and mean nothing in `mode`, but something in another.

    mode : str      one of `available()`
    settings :      EngineConfig as the user gave it
    """
    names = {name for other in available() for name in _module(other).SETTINGS} - set(_module(mode).SETTINGS)
    defaults = EngineConfig()
    return sorted(name for name in names if getattr(settings, name) != getattr(defaults, name))


def _module(mode):
    return importlib.import_module(f"moeengine.supply.modes.{mode.replace('-', '_')}")
