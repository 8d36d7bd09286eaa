"""gpt-oss: gpt-oss-20b and 120b; sinks in every softmax, a sliding window in every second layer, biases everywhere.

Source: llama.cpp, models/openai-moe.cpp.
"""

from moeengine.errors import GGUFError
from moeengine.graph.rope import window_rope


def build(b):
    hp, key = b.hparams, f"{b.hparams.arch}."
    if not hp.n_rot == hp.head_dim_k == hp.head_dim_v:
        raise GGUFError(f"{b.file.files[0].path}: key {key}rope.dimension_count: found {hp.n_rot}, expected whole heads "
                        f"(keys of {hp.head_dim_k}, values of {hp.head_dim_v})")
    windows = b.windows(every=2)
    n_ff_exp = b.file.get_per_layer(key + "expert_feed_forward_length", hp.n_layer, lo=1)
    b.embed(window_rope=window_rope(b.file, hp))
    for il in range(hp.n_layer):
        b.attention(il, neox=True, sinks=True, window=windows[il])
        b.moe(il, norm_topk=False, gating="softmax_topk", n_ff_exp=n_ff_exp[il],
              norm="post_attention_norm", activation="swiglu_oai")
        require_biases(b, il)
    b.head()


def require_biases(b, il):
    """The biases that no model of this kind goes without: a file that lost them would only look as if it worked."""
    for name in ("attn_output", "ffn_gate_inp"):
        b.tensors.info(f"blk.{il}.{name}.bias")
    for bank in (bank for tier in b.banks[-1].tiers for bank in (tier.gate, tier.up, tier.down)):
        if bank.bias is None:
            b.tensors.info(bank.name.removesuffix(".weight") + ".bias")
