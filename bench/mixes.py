"""Quant mixes: which type each tensor gets, by the rules of stock's quantize.

A mix is `iq2_xxs`, `q4_k_m`, `mxfp4_moe` (experts MXFP4, the rest Q8_0, as gpt-oss is published), or the name of one type for all matrices (`q8_0`, `iq3_xxs`, `mxfp4`, …).
Source: llama.cpp src/llama-quant.cpp, llama_tensor_get_type_impl and tensor_type_fallback.
"""

from gguf import GGMLQuantizationType as Q

from bench.shapes import Shape, Tensor

MIXES = ("iq2_xxs", "q4_k_m", "mxfp4_moe")

# A row that is no multiple of 256 takes a 32-block type of about the same size.
_FALLBACK = {
    Q.Q2_K: Q.Q4_0, Q.Q3_K: Q.Q4_0, Q.TQ1_0: Q.Q4_0, Q.TQ2_0: Q.Q4_0,
    Q.Q4_K: Q.Q5_0, Q.Q5_K: Q.Q5_1, Q.Q6_K: Q.Q8_0,
}  # fmt: skip
_FLOAT_ROLES = ("ffn_gate_inp", "ffn_gate_inp_shexp", "ssm_conv1d")


def tensor_type(mix: str, tensor: Tensor, s: Shape) -> Q:
    """Choose the type of `tensor`: F32 for vectors and routers, otherwise what `mix` says.

    Raises
    ------
    KeyError     `mix` is neither a mix nor a type's name
    """
    if len(tensor.shape) == 1 or tensor.role in _FLOAT_ROLES or tensor.role.endswith(".bias"):
        return Q.F32
    if mix == "iq2_xxs":
        qtype = _iq2_xxs(tensor, s)
    elif mix == "q4_k_m":
        qtype = _q4_k_m(tensor, s)
    elif mix == "mxfp4_moe":
        qtype = Q.MXFP4 if tensor.role.endswith("_exps") else Q.Q8_0
    else:
        qtype = _one_type(Q[mix.upper()], tensor)
    return _fit(qtype, tensor.shape[-1])


def _iq2_xxs(t: Tensor, s: Shape) -> Q:
    """351 MB a token at 8 layers of Qwen3-30B-A3B. `attn_output` is one step above stock's choice,
    so that a 3-bit type takes part."""
    if t.role == "output":
        return Q.Q5_K
    if t.role == "token_embd":
        return Q.Q2_K
    if t.role == "attn_v":
        return Q.Q4_K
    if t.role == "attn_k" and s.n_expert == 8:
        return Q.Q4_K
    if t.role == "attn_output":
        return Q.Q5_K if s.n_expert == 8 else Q.IQ3_XXS
    if t.role.startswith("ffn_down") and t.il < s.n_layer // 8:
        return Q.Q2_K
    return Q.IQ2_XXS


def _q4_k_m(t: Tensor, s: Shape) -> Q:
    """533 MB a token at 8 layers of Qwen3-30B-A3B."""
    n = s.n_layer
    more_bits = t.il < n // 8 or t.il >= 7 * n // 8 or (t.il - n // 8) % 3 == 2
    if t.role == "output":
        return Q.Q6_K
    if s.n_expert == 8 and t.role in ("attn_v", "attn_k"):
        return Q.Q8_0
    if s.n_expert == 8 and t.role == "attn_output":
        return Q.Q5_K
    if (t.role == "attn_v" or t.role.startswith("ffn_down")) and more_bits:
        return Q.Q6_K
    return Q.Q4_K


def _one_type(qtype: Q, t: Tensor) -> Q:
    float_or_q8 = qtype in (Q.F32, Q.F16, Q.BF16, Q.Q8_0)
    if t.role == "output" and not float_or_q8:
        return Q.Q6_K
    if t.role == "token_embd" and not float_or_q8:
        return Q.Q4_K
    return qtype


def _fit(qtype: Q, n_cols: int) -> Q:
    from gguf import GGML_QUANT_SIZES

    if n_cols % GGML_QUANT_SIZES[qtype][0]:
        qtype = _FALLBACK.get(qtype, Q.IQ4_NL)
    if n_cols % GGML_QUANT_SIZES[qtype][0]:
        qtype = Q.F16
    return qtype
