"""Experts that a trace found to be used, most used first: what a cache is filled with at load."""

import json

from moeengine.errors import ConfigError
from moeengine.loader.whole_file import read_file


def experts_by_use(path, option):
    """Read a file of `trace --save`: list of (il, ie). option: who asked for it, for messages.

    Raises
    ------
    ConfigError    the file is not one, or cannot be read
    """
    try:
        rows = json.loads(read_file(path))["experts"]
        return [(int(il), int(ie)) for il, ie, _ in rows]
    except OSError as error:
        raise ConfigError(f"{option}: {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ConfigError(
            f"{option}: {path}: expected the file of `trace --save`, found another ({error})"
        ) from None
