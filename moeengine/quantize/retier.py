"""Spreads a model's experts over banks of different quant types: the busy ones fine, the others coarse.

Ids count through the tiers in order, so experts are renumbered: with them the router's rows and whatever else is kept
an expert. What keeps its type is copied byte for byte.
"""

import re
from dataclasses import dataclass

import gguf
import numpy as np

from moeengine.errors import ConfigError, GGUFError, NumericError
from moeengine.kernels import dequantize
from moeengine.loader.banks import MAX_TIERS, layer_banks
from moeengine.loader.messages import at_tensor, plural, quoted, shown_path
from moeengine.loader.model_file import ModelFile
from moeengine.quantize import quant_type, quantize
from moeengine.quantize.gguf_copy import header_bytes, metadata_entries, replacing
from moeengine.quantize.rewrite import check_output, check_room, write_tensor

BANK = re.compile(r"blk\.(\d+)\.ffn_(gate_up|gate|up|down)_exps\.(weight|scale|bias)", re.ASCII)
TIERED = re.compile(r"_exps_tier\d+\.", re.ASCII)
# Beside the banks: one row, or one value, an expert.
BY_EXPERT = re.compile(r"blk\.(\d+)\.(ffn_gate_inp\.(weight|bias)|exp_probs_b(\.bias)?)", re.ASCII)
# Experts of every token, by number.
TABLE = re.compile(r"blk\.(\d+)\.ffn_gate_tid2eid\.weight", re.ASCII)
KEEP = "keep"


@dataclass(frozen=True)
class Part:
    """One tensor of the output.

    info : TensorInfo          that it is made of
    name, qtype, shape :       what it becomes; row-major
    experts : list of int      rows along the first axis, in the output's order; None: the tensor as it is
    is_table : bool            ids stand in it, of which experts[i] becomes i
    """

    info: object
    name: str
    qtype: object
    shape: tuple
    experts: list | None = None
    is_table: bool = False

    @property
    def n_bytes(self):
        block, block_bytes = gguf.GGML_QUANT_SIZES[self.qtype]
        return int(np.prod(self.shape)) // block * block_bytes

    @property
    def is_copied(self):
        same_rows = len(self.shape) == 1 or self.shape[-1] == self.info.shape[-1]
        return self.qtype == self.info.qtype and same_rows


def parse_tiers(text):
    """Tiers of a text such as "16=q8_0,48=q4_k,rest=iq2_xxs".

    Returns
    -------
    list of (count or None, type or None)    None: the rest of the experts; the type they have

    Raises
    ------
    ConfigError, UnsupportedError
    """
    tiers = []
    for part in text.split(","):
        count, found, name = part.strip().partition("=")
        if not found or not (count == "rest" or count.isdecimal() and int(count) > 0):
            raise ConfigError(f"tiers: found {quoted(part)}, expected N=TYPE or rest=TYPE, e.g. 16=q8_0,rest=iq2_xxs")
        tiers.append((None if count == "rest" else int(count), None if name == KEEP else quant_type(name)))
    if len(tiers) > MAX_TIERS:
        raise ConfigError(f"tiers: found {len(tiers)}, expected at most {MAX_TIERS}")
    if sum(count is None for count, _ in tiers) > 1:
        raise ConfigError("tiers: found 'rest' twice, expected it once")
    return tiers


def plan(model, tiers, experts):
    """What every tensor of a model becomes.

    Parameters
    ----------
    model : ModelFile
    tiers : list of (count or None, type or None)   see `parse_tiers`
    experts : list of (il, ie)      most wanted first: they fill the tiers in order; others follow by id

    Returns
    -------
    list of Part, in the order of the file

    Raises
    ------
    GGUFError       the experts' tensors do not fit together
    ConfigError     the tiers do not add up, a type does not fit, the file has tiers or groups of experts already,
                    `experts` names one that it does not have
    """
    _check_plain(model)
    ranks = {key: i for i, key in reversed(list(enumerate(experts)))}
    groups, parts = {}, []
    for info in model.tensors.values():
        if bank := BANK.fullmatch(info.name):
            il, n = int(bank[1]), _n_expert(model, int(bank[1]))
            if il not in groups:
                groups[il] = _groups(il, n, tiers, ranks)
            parts += _bank_parts(info, bank, n, groups[il], tiers)
        elif (row := BY_EXPERT.fullmatch(info.name) or TABLE.fullmatch(info.name)) and f"blk.{row[1]}.ffn_down_exps.weight" in model.tensors:
            il, n = int(row[1]), _n_expert(model, int(row[1]))
            if il not in groups:
                groups[il] = _groups(il, n, tiers, ranks)
            order = [ie for group in groups[il] for ie in group]
            parts.append(Part(info, info.name, info.qtype, info.shape, order if len(order) > 1 else None,
                              is_table=bool(TABLE.fullmatch(info.name))))  # fmt: skip
        else:
            parts.append(Part(info, info.name, info.qtype, info.shape))
    if not groups:
        raise ConfigError(f"{shown_path(model.path)}: found no experts, expected some")
    for il, ie in experts:
        if not 0 <= ie < sum(map(len, groups.get(il, ()))):
            raise ConfigError(
                f"experts: found expert {ie} of layer {il}, expected those of {shown_path(model.path)}; "
                "the list is of another model"
            )
    return parts


def _check_plain(model):
    for name in model.tensors:
        if TIERED.search(name):
            raise ConfigError(f"{shown_path(model.path)}: found {quoted(name)}, expected no tiers yet")
    n_groups = model.get_int(f"{model.architecture}.expert_group_count", 1, lo=0)
    if n_groups > 1:
        raise ConfigError(
            f"{shown_path(model.path)}: found {n_groups} groups of experts, expected one: "
            "experts cannot be renumbered across groups"
        )
    if model.get_int(f"{model.architecture}.experts_per_group", 1) > 1:
        raise ConfigError(f"{shown_path(model.path)}: found groups of experts that share others, expected none: experts cannot "
                          "be renumbered across groups")  # fmt: skip
    n_embd = model.get_int(f"{model.architecture}.embedding_length", lo=1)
    for il in sorted({int(bank[1]) for bank in map(BANK.fullmatch, model.tensors) if bank}):
        n = layer_banks(model, il, n_embd=n_embd).n_expert
        for name in (f"blk.{il}.ffn_gate_inp.bias", f"blk.{il}.exp_probs_b.bias", f"blk.{il}.exp_probs_b"):
            if name in model.tensors and (shape := model.tensor(name).shape) != (n,):
                raise GGUFError(f"{at_tensor(model.path, name)}: found shape {shape}, expected {(n,)}, one value an expert")


def _n_expert(model, il):
    shape = model.tensor(f"blk.{il}.ffn_down_exps.weight").shape
    return shape[0] if len(shape) == 3 else 1


def _groups(il, n, tiers, ranks):
    """Experts of each tier, ids ascending: list of lists."""
    fixed = sum(count or 0 for count, _ in tiers)
    if fixed > n or fixed < n and not any(count is None for count, _ in tiers):
        raise ConfigError(f"tiers: found {plural(fixed, 'expert')} in all, expected {n}, as layer {il} has")
    wanted = sorted(range(n), key=lambda ie: (ranks.get((il, ie), len(ranks)), ie))
    groups = []
    for count, _ in tiers:
        count = n - fixed if count is None else count
        groups.append(sorted(wanted[:count]))
        wanted = wanted[count:]
    if not groups[0]:
        raise ConfigError(f"tiers: found no expert of layer {il} in the first, expected one or more")
    return groups


def _bank_parts(info, bank, n, groups, tiers):
    """The output tensors of one tensor of a bank, one a tier that has experts."""
    shape = info.shape if len(info.shape) == 3 or bank[3] != "weight" else (1, *info.shape)
    i = 0
    for group, (_, qtype) in zip(groups, tiers):
        if not group:
            continue
        name = info.name if i == 0 else info.name.replace("_exps.", f"_exps_tier{i}.")
        i += 1
        if bank[3] != "weight":
            per_expert = shape[0] == n and (n > 1 or bank[3] == "bias")
            yield Part(info, name, info.qtype, (len(group), *shape[1:]) if per_expert else shape,
                       group if per_expert else None)  # fmt: skip
            continue
        qtype = qtype or info.qtype
        block, n_columns = gguf.GGML_QUANT_SIZES[qtype][0], shape[2]
        if n_columns % block and bank[2] == "down":
            n_columns = -(-n_columns // block) * block  # the activation is zero there
        elif n_columns % block:
            raise ConfigError(f"tensor {quoted(info.name)}: rows of {n_columns} weights do not fit {qtype.name}, "
                              f"expected a multiple of {block}")  # fmt: skip
        yield Part(info, name, qtype, (len(group), shape[1], n_columns), group)


def retier(path, out, tiers, experts, *, imatrix=None, force=False, progress=None):
    """Write a model again with its experts spread over tiers.

    Parameters
    ----------
    path, out : path-like
    tiers, experts : see `plan`
    imatrix : dict of name -> float32 (X or 1, 1, C), optional    see `read_imatrix`; for what is rounded anew
    force : bool                  replace an output that exists (never the input)
    progress : callable, optional (Part, bytes written, bytes in all), after each tensor

    Returns
    -------
    list of Part

    Raises
    ------
    ConfigError      see `plan`; the output is the input or exists
    GGUFError        the input is not sound
    SupplyError      the output cannot be written, or the disk has no room for it; the input lost bytes meanwhile
    NumericError     weights are not finite
    """
    with ModelFile.open(path) as model:
        check_output(model, out, force)
        parts = plan(model, tiers, experts)
        first = model.files[0]
        entries = metadata_entries(first.path, first.data_offset)
        header, offsets, total_bytes = header_bytes(
            {key: raw for key, raw in entries.items() if not key.startswith("split.")},
            [(p.name, p.qtype, p.shape, p.n_bytes) for p in parts],
            first.alignment,
        )
        check_room(out, total_bytes)
        with replacing(out) as file:
            file.write(header)
            for part, offset in zip(parts, offsets, strict=True):
                write_tensor(file, part, offset, _pieces(model, part, (imatrix or {}).get(part.info.name)), model)
                if progress:
                    progress(part, file.tell(), total_bytes)
            file.write(b"\0" * (total_bytes - file.tell()))
            model.require_whole()
    return parts


def _pieces(model, part, importance):
    """Yield the bytes of one output tensor, an expert at a time."""
    raw = model.raw(part.info.name)
    if part.experts is None:
        yield raw
        return
    if part.is_table:
        yield _renumbered(model, part, raw)
        return
    if part.info.name.endswith("_exps.weight") and raw.ndim == 2:  # the axis of a single expert was dropped
        raw = raw[None]
    if raw.ndim == 1:  # a value an expert
        raw = raw.reshape(part.info.shape[0], -1)
    for ie in part.experts:
        if part.is_copied:
            yield np.ascontiguousarray(raw[ie])
            continue
        values = dequantize(raw[ie], part.info.qtype)
        more = part.shape[-1] - values.shape[-1]
        weights = None if importance is None else importance[ie if len(importance) > 1 else 0, 0]
        if more:
            values = np.pad(values, ((0, 0), (0, more)))
            weights = None if weights is None else np.pad(weights, (0, more), constant_values=1)
        try:
            yield quantize(values, part.qtype, importance=weights)
        except NumericError as error:
            raise NumericError(f"{shown_path(model.path)}: tensor {quoted(part.info.name)}, expert {ie}: {error}") from None


def _renumbered(model, part, raw):
    """The bytes of a table of expert ids. GGUFError: it holds another."""
    ids, new = np.ascontiguousarray(raw).view("<i4"), np.argsort(part.experts).astype("<i4")
    if part.info.qtype.name != "I32" or ids.size and not 0 <= ids.min() <= ids.max() < len(new):
        raise GGUFError(f"{at_tensor(model.path, part.info.name)}: found {part.info.qtype.name} from {ids.min()} to {ids.max()}, "
                        f"expected I32 from 0 to {len(new) - 1}")
    return new[ids].view(np.uint8)
