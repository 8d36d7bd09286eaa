"""glm-dsa: GLM-5, 5.1 and 5.2; latent attention to the positions that an indexer chooses, for some layers' successors too.

Source: llama.cpp, models/glm-dsa.cpp.
"""

import dataclasses

from moeengine.errors import UnsupportedError
from moeengine.graph.arch import deepseek2
from moeengine.graph.indexed_latent import Indexers, types_of

LONG = 1 << 20  # GLM-5.2's context, from which on not every layer has an indexer


def build(b):
    hp = b.hparams
    b.tensors.apply_scales()
    key = f"{hp.arch}.rope.scaling.yarn_log_multiplier"
    if b.file.get_float(key, 0.0):
        raise UnsupportedError(f"{b.file.files[0].path}: key {key}: {b.file.get_float(key)} is not supported; supported: 0, or none")
    if hp.expert_gating is None:
        b.hparams = dataclasses.replace(hp, expert_gating="sigmoid")
    layers = types_of(b) or usual_layers(hp)
    deepseek2.build(b, Indexers(b, eps=0.0, neox=False, layers=layers))


def usual_layers(hp):
    """Of a file that does not say: the first two, then every fourth, of GLM-5.2."""
    return [hp.n_ctx_train < LONG or il < 2 or il % 4 == 2 for il in range(hp.n_layer)]
