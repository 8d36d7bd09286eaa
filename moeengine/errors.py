"""Every error that moeengine raises on purpose. The command line turns them into one line."""


class MoeEngineError(Exception):
    """Base of all errors raised on purpose; `str()` is one complete sentence for a person."""


class ConfigError(MoeEngineError, ValueError):
    """A setting or argument is out of range or contradicts another."""


class GGUFError(MoeEngineError, ValueError):
    """A model file is not what it claims to be: file, tensor or key, found, expected."""


class UnsupportedError(MoeEngineError):
    """The architecture, quant type, tokenizer or instruction set is not supported; lists what is."""


class ContextOverflowError(MoeEngineError, ValueError):
    """The prompt does not fit the context; names both lengths."""


class NumericError(MoeEngineError, ArithmeticError):
    """NaN or infinity where a number is needed; names layer and expert."""


class SupplyError(MoeEngineError, OSError):
    """Expert bytes could not be brought in: layer, expert, file, errno."""


class ClosedError(MoeEngineError, RuntimeError):
    """The Engine or Session was closed, or is in use by another thread."""


class CancelledError(MoeEngineError):
    """The call was cancelled; the session holds what was computed before and stays usable."""
