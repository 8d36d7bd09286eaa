"""Tiny quantized gpt-oss models with random weights whose logits by stock llama.cpp are recorded (tools/record_archs.py).

Beside the float model in arch_models.py: experts in MXFP4, as published, and in a mix of Q4_K and Q8_0.
"""

import numpy as np

from tests.tiny import write_tiny

GPT_OSS_MODELS = {
    "gpt-oss-mxfp4": dict(
        n_layer=3, n_embd=64, n_head=4, n_head_kv=2, head_dim=64, n_ff_exp=64, n_expert=4, n_expert_used=3, quant="Q8_0",
        quants={"_exps": "MXFP4"}, seed=1, metadata={"gpt-oss.attention.sliding_window": 40},
    ),
    "gpt-oss-mix": dict(
        n_layer=2, n_embd=256, n_head=2, n_head_kv=1, head_dim=64, n_ff_exp=32, n_expert=4, n_expert_used=3, quant="Q8_0",
        quants={"gate_exps": "Q4_K", "up_exps": "Q4_K", "attn_q": "Q4_K", "token_embd": "Q4_K"}, seed=4,
        metadata={"gpt-oss.attention.sliding_window": 128},
    ),
}  # fmt: skip


def write_gpt_oss(path, name):
    """Write GPT_OSS_MODELS[name], 128 tokens and no vocabulary, and return a Tiny."""
    options = GPT_OSS_MODELS[name]
    metadata = options["metadata"] | {"tokenizer.ggml.model": "none"}
    return write_tiny(path, "gpt-oss", n_ctx=512, tokenizer=False,
                      **options | {"metadata": metadata, "tensors": strong_vectors(**options)})  # fmt: skip


def strong_vectors(*, n_layer, n_embd, n_head, n_head_kv, head_dim, n_ff_exp, n_expert, seed, **_):
    """Biases and sinks that matter: gate and up beyond the limits of the activation, sinks above the scores."""
    rng = np.random.default_rng(seed)
    shapes = {
        "ffn_gate_exps.bias": ((n_expert, n_ff_exp), 4), "ffn_up_exps.bias": ((n_expert, n_ff_exp), 4),
        "ffn_down_exps.bias": ((n_expert, n_embd), 0.3), "ffn_gate_inp.bias": ((n_expert,), 0.5),
        "attn_q.bias": ((n_head * head_dim,), 0.5), "attn_k.bias": ((n_head_kv * head_dim,), 0.5),
        "attn_v.bias": ((n_head_kv * head_dim,), 0.5), "attn_output.bias": ((n_embd,), 0.3),
    }  # fmt: skip
    made = {}
    for il in range(n_layer):
        made |= {f"blk.{il}.{name}": std * rng.standard_normal(shape) for name, (shape, std) in shapes.items()}
        made[f"blk.{il}.attn_sinks.weight"] = np.linspace(-2, 5, n_head)
    return made
