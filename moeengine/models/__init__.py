"""The small mixture-of-experts model that ships with the package; `README.md` beside it is its card."""

from pathlib import Path

DEFAULT_MODEL = "tales.gguf"


def default_model_path() -> Path:
    """Give the path of the GGUF file that is run when no model is named."""
    return Path(__file__).with_name(DEFAULT_MODEL)
