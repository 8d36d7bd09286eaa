"""A mixture of experts with many small experts, and what every supply test asks of it."""

import numpy as np

from moeengine import Engine
from tests.tiny import write_tiny

N_EXPERT, N_USED, N_LAYER = 64, 4, 3
PROMPT_LENGTH, N_DECODE = 70, 24


def write_model(folder, **changes):
    """Path of a file with 64 experts a layer of mixed quant types, so that slices have several sizes."""
    options = dict(n_layer=N_LAYER, n_expert=N_EXPERT, n_expert_used=N_USED, quant="Q4_K",
                   quants={"blk.1.ffn_down": "Q6_K", "attn": "Q8_0", "token_embd": "Q8_0"}, n_ctx=256)  # fmt: skip
    return write_tiny(folder / "many.gguf", "qwen3moe", **options | changes).path


def prompt(n=PROMPT_LENGTH, seed=5):
    return np.random.default_rng(seed).integers(0, 256, n).tolist()


def run(path, n_prompt=PROMPT_LENGTH, n_decode=N_DECODE, **settings):
    """Logits of a prompt and of tokens fed one by one, float32 (n_decode + 1, V), and the stats afterwards."""
    settings = {"n_ctx": 200, "n_threads": 2} | settings
    with Engine(path, **settings) as engine:
        session = engine.session()
        rows = [session.eval(prompt(n_prompt)).copy()]
        for token in prompt(n_decode, seed=6):
            rows.append(session.eval([token]).copy())
        return np.stack(rows), engine.stats()


def cache_mb_of(path, share, **settings):
    """Megabytes of a cache that holds `share` of all experts."""
    with Engine(path, n_ctx=64, moe_mode="stream", cache_mb=1000, **settings) as engine:
        supply = engine.stats()["supply"]
    whole = supply["slab_bytes"] / (supply["cache_slots"] + supply["ring_slots"]) * N_EXPERT * N_LAYER
    return share * whole / 1e6
