"""deepseek32: DeepSeek-V3.2; deepseek2's latent attention, to the positions that an indexer chooses.

Source: llama.cpp, models/deepseek32.cpp.
"""

from moeengine.graph.arch import deepseek2
from moeengine.graph.indexed_latent import Indexers

KEY_EPS = 1e-6  # of the norm of the indexer's keys


def build(b):
    b.tensors.apply_scales()
    b.file.get(f"{b.hparams.arch}.expert_gating_func")  # no default would be right
    deepseek2.build(b, Indexers(b, eps=KEY_EPS, neox=True))
