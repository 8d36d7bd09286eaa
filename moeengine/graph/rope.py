"""Rotary position parameters from a model's metadata: linear, YaRN and per-frequency factors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from moeengine.errors import GGUFError, UnsupportedError
from moeengine.graph.weights import Vector

f32 = np.float32
LEAST_FACTOR, MOST_FACTOR = 1e-6, 1e6  # of a context: with others, angles leave float32 or its reciprocal does
LEAST_TURNS, MOST_TURNS = 1e-6, 1e6
LEAST_BASE, MOST_BASE = 1e-30, 1e30
MOST_SCALE = 1000.0  # of queries, keys or their scores: attention rounds to F16, which ends at 65504


@dataclass(frozen=True)
class RopeConfig:
    """What turns a position into angles; see EmbedBlock for the use of each field."""

    n_rot: int
    theta_scale: float
    freq_scale: float
    ext_factor: float
    attn_factor: float
    corr_low: float
    corr_high: float
    freq_factors: object  # graph.weights.Vector (n_rot/2,) or None
    long_factors: object  # the same for contexts of more than n_ctx_orig positions
    n_ctx_orig: int


def correction_dim(n_rot, n_ctx_orig, n_turns, base):
    """Pair index whose wave length turns n_turns times within n_ctx_orig positions (YaRN, section 3.2)."""
    return n_rot * math.log(n_ctx_orig / (n_turns * 2 * math.pi)) / (2 * math.log(base))


def text_factors(file, n_rot, freq_factors, *, interleaved):
    """`freq_factors` for text under M-RoPE, where sections of the rotated pairs have positions of their own.

    Three sections take a text's position; pairs of the fourth, or of none, stand at 0: their factor becomes infinite.
    A file without `rope.dimension_sections` has plain rope.

    Parameters
    ----------
    freq_factors : Vector (n_rot/2,) or None
    interleaved : bool      pair i belongs to section i % 3 while that has pairs left; else sections follow each other

    Returns
    -------
    Vector (n_rot/2,) or None

    Raises
    ------
    GGUFError           the sections are no three or four counts

    Source: llama.cpp, llm_graph_input_pos (positions of text) and ggml_mrope_cache_init.
    """
    key = f"{file.architecture}.rope.dimension_sections"
    sections = file.get_array(key, None, kind="int")
    if sections is None or not sections[:2].all():
        return freq_factors
    counts = [int(n) for n in sections]
    if not 3 <= len(counts) <= 4 or not all(0 <= n <= n_rot for n in counts):
        raise GGUFError(f"{file.files[0].path}: key {key}: found {counts}, expected 3 or 4 counts of up to {n_rot}")
    pair = np.arange(n_rot // 2) % sum(counts)
    if interleaved:
        turns = pair < 3 * np.array(counts)[pair % 3]
    else:
        turns = pair < sum(counts[:3])
    if turns.all():
        return freq_factors
    base = freq_factors.array() if freq_factors is not None else np.ones(n_rot // 2, f32)
    return Vector(np.where(turns, base, f32(np.inf)), key)


def original_context(file, n_ctx_train=0):
    """Positions the model was trained for before its context was stretched."""
    n_ctx_train = n_ctx_train or file.get_int(f"{file.architecture}.context_length", lo=1)
    return file.get_int(f"{file.architecture}.rope.scaling.original_context_length", n_ctx_train, lo=0, hi=1 << 31) or n_ctx_train


def rope_config(file, *, n_rot, n_ctx_train, freq_factors=None, long_factors=None, log_multiplier_cancels=False,
                base_key="rope.freq_base", default_base=10000.0, scaled=True, rot_key="rope.dimension_count",
                default_beta_fast=32.0):
    """Read the `rope.*` keys of a model file.

    Parameters
    ----------
    file : ModelFile
    n_rot : int                rotated values of a head, even
    n_ctx_train : int          context length the model was trained for
    freq_factors : Vector (n_rot/2,) or None     divisors of the angle (`rope_freqs`, `rope_factors_short`)
    base_key : str             key of the frequency base, without the architecture's prefix
    default_base : float       where the file has no such key
    rot_key : str              key that n_rot came from
    default_beta_fast : float  turns above which YaRN leaves angles alone, where the file does not say
    scaled : bool              False: the angles are not scaled; what the file says of scaling is for other layers
    long_factors : Vector (n_rot/2,) or None     in their place in contexts longer than the original (`rope_factors_long`)
    log_multiplier_cancels : bool    a file with a log multiplier has YaRN's attention factor in the scale of the scores alone

    Raises
    ------
    GGUFError           n_rot odd; a number out of range
    UnsupportedError    unknown scaling type

    Source: llama.cpp, llama_context (attention factor) and ggml_rope_cache_init (angles).
    """
    arch = file.architecture
    if n_rot % 2:
        raise GGUFError(f"{file.files[0].path}: key {arch}.{rot_key}: found {n_rot}, expected an even number")
    base = file.get_float(f"{arch}.{base_key}", default_base, lo=LEAST_BASE, hi=MOST_BASE)
    kind = file.get_str(f"{arch}.rope.scaling.type", "linear")
    if kind not in ("none", "linear", "yarn", "longrope"):
        raise UnsupportedError(
            f"{file.files[0].path}: {arch}.rope.scaling.type: {kind!r} is not supported; supported: none, linear, yarn, longrope"
        )
    for key in ("rope.scaling.factor", "rope.scale_linear"):  # the older name comes second
        factor = file.get_float(f"{arch}.{key}", 0.0)
        if factor:
            break
    if factor and not LEAST_FACTOR <= factor <= MOST_FACTOR:
        raise GGUFError(f"{file.files[0].path}: {arch}.{key}: found {factor}, expected 0, or {LEAST_FACTOR} to "
                        f"{MOST_FACTOR:.0f}")
    freq_scale = f32(1) if factor == 0.0 or kind == "none" else f32(1) / f32(factor)
    ext_factor = file.get_float(f"{arch}.rope.scaling.yarn_ext_factor", -1.0)
    if ext_factor < 0:
        ext_factor = 1.0 if kind == "yarn" else 0.0
    attn_factor = file.get_float(f"{arch}.rope.scaling.attn_factor", 1.0, lo=0, hi=MOST_SCALE)
    low = high = 0.0
    if ext_factor == 0.0:
        attn_factor *= file.get_float(f"{arch}.rope.scaling.yarn_attn_factor", 1.0, lo=0, hi=MOST_SCALE)
    if ext_factor != 0.0:
        if base == 1:
            raise GGUFError(f"{file.files[0].path}: {arch}.{base_key}: found 1, with which YaRN has no wave lengths")
        n_orig = original_context(file, n_ctx_train)
        beta_fast = file.get_float(f"{arch}.rope.scaling.yarn_beta_fast", default_beta_fast, lo=LEAST_TURNS, hi=MOST_TURNS)
        beta_slow = file.get_float(f"{arch}.rope.scaling.yarn_beta_slow", 1.0, lo=LEAST_TURNS, hi=MOST_TURNS)
        low = max(0.0, math.floor(correction_dim(n_rot, n_orig, beta_fast, base)))
        high = min(n_rot - 1.0, math.ceil(correction_dim(n_rot, n_orig, beta_slow, base)))
        # The published factor 0.1 ln(s) + 1; a log multiplier of the file divides it.
        scale = 1.0 / float(freq_scale)
        published = 1.0 + 0.1 * math.log(scale) if scale > 1 else 1.0
        log_mul = file.get_float(f"{arch}.rope.scaling.yarn_log_multiplier", 0.0)
        if log_mul != 0.0 and not log_multiplier_cancels:
            divisor = 1.0 + 0.1 * log_mul * math.log(scale) if scale > 1 else 1.0
            if not divisor > 0:
                raise GGUFError(f"{file.files[0].path}: {arch}.rope.scaling.yarn_log_multiplier: found {log_mul}, with which "
                                f"attention is scaled by {divisor}, expected more than 0")
            attn_factor *= published / divisor
        elif log_mul == 0.0:
            attn_factor *= published
        if not scaled:  # stock gives every layer one factor, less what belongs to the scaling of its angles
            attn_factor /= published
    return RopeConfig(
        n_rot=n_rot,
        theta_scale=float(f32(base) ** f32(-2.0 / n_rot)),
        freq_scale=float(freq_scale) if scaled else 1.0,
        ext_factor=float(ext_factor) if scaled else 0.0,
        attn_factor=float(attn_factor),
        corr_low=low,
        corr_high=high,
        freq_factors=freq_factors,
        long_factors=long_factors,
        n_ctx_orig=original_context(file, n_ctx_train),
    )


def window_rope(file, hp, *, n_rot=None, default_base=None, scaled=True, freq_factors=None):
    """RopeConfig of layers with a sliding window, whose base is `rope.freq_base_swa`; None where nothing is rotated.

    Parameters
    ----------
    hp : HParams
    n_rot : int or None             rotated values of a head, `rope.dimension_count_swa`; None: as in other layers
    default_base : float or None    where the file has no such key; None: as in other layers
    scaled : bool                   the angles are scaled as in other layers
    freq_factors : Vector (n_rot/2,) or None     in contexts of any length
    """
    rot_key = "rope.dimension_count" if n_rot is None else "rope.dimension_count_swa"
    n_rot = hp.n_rot if n_rot is None else n_rot
    if not n_rot:
        return None
    if default_base is None:
        default_base = file.get_float(f"{hp.arch}.rope.freq_base", 10000.0, lo=LEAST_BASE, hi=MOST_BASE)
    return rope_config(file, n_rot=n_rot, n_ctx_train=hp.n_ctx_train, base_key="rope.freq_base_swa",
                       default_base=default_base, scaled=scaled, rot_key=rot_key, freq_factors=freq_factors,
                       long_factors=freq_factors)
