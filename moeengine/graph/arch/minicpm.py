"""minicpm: MiniCPM 1B and 2B, and MiniCPM-MoE-8x2B; scaled as granitemoe, by factors that older files do not name.

Source: llama.cpp, models/minicpm.cpp.
"""

import math

from moeengine.graph.arch.granitemoe import build_scaled


def build(b):
    hp, file, key = b.hparams, b.file, f"{b.hparams.arch}."
    build_scaled(b, embedding=file.get_float(key + "embedding_scale", 12.0),
                 residual=file.get_float(key + "residual_scale", 1.4 / math.sqrt(hp.n_layer)),
                 logit=file.get_float(key + "logit_scale", 256 / hp.n_embd, lo=1e-6), attention=hp.head_dim_k**-0.5)
