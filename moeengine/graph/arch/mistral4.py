"""mistral4: Mistral-Small-4 and its kin; deepseek2 under another name."""

from moeengine.errors import UnsupportedError
from moeengine.graph.arch import deepseek2

USUAL = 0.1  # log multiplier with which YaRN's attention factor is the same for both


def build(b):
    key = f"{b.hparams.arch}.rope.scaling.yarn_log_multiplier"
    found = b.file.get_float(key, 0.0)
    if found and abs(found - USUAL) > 1e-6:
        raise UnsupportedError(f"{b.file.files[0].path}: key {key}: {found} is not supported; supported: {USUAL}, or none")
    deepseek2.build(b)
