"""The expert tensors of a layer: which exist, whether they fit, which bytes belong to which expert.

A layer's experts lie in one to four tiers, each with gate, up and down banks of own quant types:

    blk.N.ffn_{gate,up,down}_exps.weight           tier 0
    blk.N.ffn_{gate,up,down}_exps_tier{1,2,3}.weight
    blk.N.ffn_gate_up_exps[_tierK].weight          gate rows, then up rows of each expert

A model whose experts have no gate has up and down banks only; the gate is a bank of no rows (`no_gate`).
Global expert ids count through the tiers in order. `.scale` (one value, or one an expert) and `.bias`
tensors beside a bank have the bank's name with another ending.
"""

import dataclasses
import re
from dataclasses import dataclass

import gguf

from moeengine.errors import GGUFError
from moeengine.loader.messages import at_tensor, plural, quoted, shown_path

MAX_TIERS = 4
# A down bank may be padded so that the largest block fits its rows.
PADDED_TO = max(block for block, _ in gguf.GGML_QUANT_SIZES.values())

_BANK_NAME = re.compile(
    r"blk\.(\d+)\.ffn_(gate_up|gate|up|down)_exps(?:_tier(\d+))?\.weight", re.ASCII
)


@dataclass(frozen=True, slots=True)
class BankTensor:
    """The matrices of one kind (gate, up or down) for the experts of one tier.

    Expert `ie` (local to the tier) has n_rows rows of n_cols weights at
    offset + ie * expert_stride + row_offset * row_bytes in file `shard`.

    Attributes
    ----------
    name : tensor in the file
    n_cols : weights in a row as stored; a down bank may be padded beyond n_ff_exp
    expert_bytes : bytes of one expert's matrix (n_rows * row_bytes)
    expert_stride : bytes from one expert to the next; twice expert_bytes in a fused bank
    row_offset : rows of an expert before this matrix; not 0 for the up half of a fused bank
    scale : name of the tensor beside it, or None; float32 (1,) or (n_expert,)
    bias : name of the tensor beside it, or None; float32 (n_expert, n_rows); beside a fused bank
        (n_expert, 2 * n_rows), of which [:, row_offset : row_offset + n_rows] is this matrix's
    """

    name: str
    qtype: gguf.GGMLQuantizationType
    n_expert: int
    n_rows: int
    n_cols: int
    row_bytes: int
    expert_bytes: int
    expert_stride: int
    shard: int
    offset: int
    row_offset: int = 0
    scale: str | None = None
    bias: str | None = None

    def slice(self, ie):
        """(shard, offset, n_bytes) of the matrix of expert `ie` (local to the tier), or IndexError."""
        if not 0 <= ie < self.n_expert:
            raise IndexError(f"{self.name}: expert {ie} of {self.n_expert}")
        return (
            self.shard,
            self.offset + ie * self.expert_stride + self.row_offset * self.row_bytes,
            self.expert_bytes,
        )


@dataclass(frozen=True, slots=True)
class Tier:
    """Experts first_expert .. first_expert + n_expert - 1 of a layer, with one set of banks."""

    index: int
    first_expert: int
    n_expert: int
    gate: BankTensor
    up: BankTensor
    down: BankTensor

    @property
    def is_fused(self):
        """True when gate and up are halves of one tensor."""
        return self.is_gated and self.gate.name == self.up.name

    @property
    def is_gated(self):
        return self.gate.n_rows > 0


@dataclass(frozen=True, slots=True)
class LayerBanks:
    """All experts of layer `il`: X = n_expert over the tiers, E = n_embd, F = n_ff_exp."""

    il: int
    n_expert: int
    n_embd: int
    n_ff_exp: int
    router: str
    tiers: tuple[Tier, ...]

    def locate(self, ie):
        """(tier, local id) of global expert `ie`; IndexError out of range."""
        if ie >= 0:
            for tier in self.tiers:
                if ie < tier.first_expert + tier.n_expert:
                    return tier, ie - tier.first_expert
        raise IndexError(f"blk.{self.il}: expert {ie} of {self.n_expert}")

    def slices(self, ie):
        """Byte ranges ((shard, offset, n_bytes) of gate, up, down) of global expert `ie`; 0 bytes: it has no gate."""
        tier, local = self.locate(ie)
        return tier.gate.slice(local), tier.up.slice(local), tier.down.slice(local)


def all_banks(model_file, n_layer, *, n_embd, n_expert=None, n_expert_used=1, n_ff_exp=None):
    """Find and check the expert banks of layers 0 .. n_layer - 1.

    Parameters
    ----------
    model_file : ModelFile
    n_embd : int           E, width of the model
    n_expert : int or sequence   the file's expert_count: the largest number of experts of a layer, or
                           one number a layer; None = not checked
    n_expert_used : int    A; no layer may have fewer experts
    n_ff_exp : int         F; None = whatever the up bank has

    Returns
    -------
    list of LayerBanks or None (no experts in that layer), one a layer

    Raises
    ------
    GGUFError           tensor, found, expected
    UnsupportedError    no kernel multiplies with a bank's quant type
    """
    if n_layer > len(model_file.tensors):  # before anything is made for each layer
        raise GGUFError(
            f"{shown_path(model_file.path)}: found {plural(len(model_file.tensors), 'tensor')}, "
            f"expected at least one for each of {n_layer} layers (block_count)"
        )
    found = _bank_names(model_file)
    gated = any(_gates(names) for names in found.values())
    layers = [
        _layer_banks(
            model_file,
            il,
            found.get(il, {}),
            n_embd=n_embd,
            n_expert_used=n_expert_used,
            n_ff_exp=n_ff_exp,
            gated=gated,
        )
        for il in range(n_layer)
    ]
    if n_expert is not None:
        check_counts(model_file, layers, n_expert)
    return layers


def layer_banks(model_file, il, *, n_embd, n_expert_used=1, n_ff_exp=None, gated=None):
    """`all_banks` for one layer: a LayerBanks, or None when the layer has no experts.

    gated : bool or None   whether its experts have a gate; None = as those of any layer, as for `all_banks`
    """
    found = _bank_names(model_file, prefix=f"blk.{il}.").get(il, {})
    if gated is None:
        gated = any(_gates(names) for names in _bank_names(model_file).values())
    return _layer_banks(
        model_file, il, found, n_embd=n_embd, n_expert_used=n_expert_used, n_ff_exp=n_ff_exp, gated=gated
    )


def chunk_tier(model_file, il, *, n_embd, n_expert, n_ff):
    """The Tier of `blk.N.ffn_{gate,up,down}_chexps.weight`, n_expert experts of n_ff hidden values; GGUFError: others."""
    tier = _tier(model_file, f"blk.{il}.ffn_{{}}_chexps", 0, 0, {}, n_embd, n_ff, True)
    _expect(model_file, tier.gate, "experts in number", tier.n_expert, n_expert)
    return tier


def check_counts(model_file, layers, n_expert):
    """GGUFError where the layers' expert counts are not those of the metadata: the largest, or each its own.

    layers : list of LayerBanks or None
    n_expert : int or sequence     as for `all_banks`
    """
    counts = [(layer.il, layer.n_expert) for layer in layers if layer]
    if isinstance(n_expert, int):
        wrong = [(il, n, n_expert) for il, n in counts if n > n_expert]
        if counts and not wrong and all(n < n_expert for _, n in counts):
            wrong = [(*max(counts, key=lambda row: row[1]), n_expert)]
    else:
        wrong = [(il, n, n_expert[il] if il < len(n_expert) else "a count") for il, n in counts
                 if il >= len(n_expert) or n != n_expert[il]]  # fmt: skip
    for il, found, expected in wrong:
        raise GGUFError(
            f"{shown_path(model_file.path)}: blk.{il}: found {plural(found, 'expert')} (rows of the router), "
            f"expected {expected} as the metadata says (expert_count)"
        )


def _bank_names(model_file, prefix="blk."):
    """{layer: {(tier, part): tensor name}} of the expert banks whose names start so."""
    found = {}
    for name in model_file.tensors:
        if name.startswith(prefix) and (match := _BANK_NAME.fullmatch(name)):
            il, part, tier = match.groups()
            found.setdefault(int(il), {})[int(tier or 0), part] = name
    return found


def _gates(names):
    """The names of a layer's gate banks, alone or fused."""
    return [name for (_, part), name in names.items() if part in ("gate", "gate_up")]


def _layer_banks(model_file, il, names, *, n_embd, n_expert_used, n_ff_exp, gated):
    router_name = f"blk.{il}.ffn_gate_inp.weight"
    if not names:
        if router_name in model_file.tensors:
            model_file.tensor(f"blk.{il}.ffn_down_exps.weight")  # raises: a router without experts
        return None
    n_tiers = _count_tiers(model_file, il, names)
    if not gated and (gates := _gates(names)):
        raise GGUFError(f"{at_tensor(model_file.path, gates[0])}: found it, expected experts without a gate")
    tiers, first = [], 0
    for index in range(n_tiers):
        stem = f"blk.{il}.ffn_{{}}_exps" + (f"_tier{index}" if index else "")
        tier = _tier(model_file, stem, index, first, names, n_embd, n_ff_exp, gated)
        n_ff_exp = tier.up.n_rows
        first += tier.n_expert
        tiers.append(tier)
    _check_router(model_file, router_name, first, tiers, n_embd, n_expert_used)
    return LayerBanks(il, first, n_embd, n_ff_exp, router_name, tuple(tiers))


def _count_tiers(model_file, il, names):
    """How many tiers there are: 0 .. n - 1 without a gap."""
    present = sorted({tier for tier, _ in names})
    expected = None
    if present[-1] >= MAX_TIERS:
        expected = f"none above {MAX_TIERS - 1}"
    elif len(present) <= present[-1]:
        expected = f"tier {next(i for i in range(MAX_TIERS) if i not in present)} too"
    if expected:
        raise GGUFError(
            f"{shown_path(model_file.path)}: blk.{il}: found expert tiers {', '.join(map(str, present))}, "
            f"expected {expected}"
        )
    return len(present)


def _tier(model_file, stem, index, first, names, n_embd, n_ff_exp, gated):
    fused = (index, "gate_up") in names
    if fused:
        for name in (
            f"{stem.format(part)}.{end}"
            for part in ("gate", "up")
            for end in ("weight", "scale", "bias")
        ):
            if name in model_file.tensors:
                raise GGUFError(
                    f"{at_tensor(model_file.path, name)}: found beside the fused "
                    f"{quoted(names[index, 'gate_up'])}, expected one or the other"
                )
        gate, up = _fused_halves(model_file, stem, n_embd, n_ff_exp)
    else:
        gate = _bank(model_file, stem.format("gate" if gated else "up"))
        _expect(model_file, gate, "rows of", gate.n_cols, n_embd)
        if n_ff_exp is not None:
            _expect(model_file, gate, "rows in number", gate.n_rows, n_ff_exp)
        up = _bank(model_file, stem.format("up"))
        _expect(model_file, up, "rows of", up.n_cols, n_embd)
        _expect(model_file, up, "rows in number", up.n_rows, gate.n_rows)
    down = _bank(model_file, stem.format("down"))
    _expect(model_file, down, "rows in number", down.n_rows, n_embd)
    _expect(model_file, down, "rows of", down.n_cols, gate.n_rows, padded=True)
    for bank in (up, down):
        _expect(model_file, bank, "experts in number", bank.n_expert, gate.n_expert)
    return Tier(index, first, gate.n_expert, gate if gated else no_gate(up), up, down)


def no_gate(up):
    """The gate of experts that have none: a BankTensor like `up`, but of no rows and no bytes."""
    return dataclasses.replace(up, n_rows=0, expert_bytes=0, expert_stride=0, offset=0, scale=None, bias=None)


def _fused_halves(model_file, stem, n_embd, n_ff_exp):
    whole = _bank(model_file, stem.format("gate_up"))
    _expect(model_file, whole, "rows of", whole.n_cols, n_embd)
    if whole.n_rows % 2 or n_ff_exp is not None and whole.n_rows != 2 * n_ff_exp:
        expected = 2 * n_ff_exp if n_ff_exp is not None else "an even number"
        _expect(model_file, whole, "rows in number", whole.n_rows, expected)
    return _half(whole, 0), _half(whole, whole.n_rows // 2)


def _half(whole, row_offset):
    n_rows = whole.n_rows // 2
    return BankTensor(
        name=whole.name, qtype=whole.qtype, n_expert=whole.n_expert, n_rows=n_rows, n_cols=whole.n_cols,
        row_bytes=whole.row_bytes, expert_bytes=n_rows * whole.row_bytes, expert_stride=whole.expert_stride,
        shard=whole.shard, offset=whole.offset, row_offset=row_offset, scale=whole.scale, bias=whole.bias,
    )  # fmt: skip


def _bank(model_file, stem):
    """The BankTensor of `stem`.weight with the scale and bias beside it."""
    info = model_file.weight(f"{stem}.weight")
    shape = (1,) * (
        3 - len(info.shape)
    ) + info.shape  # some writers drop the axis of a single expert
    if len(shape) != 3:
        raise GGUFError(
            f"{at_tensor(model_file.files[info.shard].path, info.name)}: "
            f"found shape {info.shape}, expected (experts, rows, columns)"
        )
    n_expert, n_rows, n_cols = shape
    return BankTensor(
        name=info.name, qtype=info.qtype, n_expert=n_expert, n_rows=n_rows, n_cols=n_cols, row_bytes=info.row_bytes,
        expert_bytes=n_rows * info.row_bytes, expert_stride=n_rows * info.row_bytes, shard=info.shard,
        offset=info.offset, scale=_beside(model_file, f"{stem}.scale", [(1,), (n_expert,)]),
        bias=_beside(model_file, f"{stem}.bias", [(n_expert, n_rows)]),
    )  # fmt: skip


def _beside(model_file, name, shapes):
    """`name` if there is such a tensor, of type F32 and one of the shapes; None if there is not."""
    if name not in model_file.tensors:
        return None
    info = model_file.tensor(name)
    if info.qtype != gguf.GGMLQuantizationType.F32:
        raise GGUFError(
            f"{at_tensor(model_file.files[info.shard].path, name)}: "
            f"found type {info.qtype.name}, expected F32"
        )
    if info.shape not in shapes:
        model_file.tensor(name, shapes[-1])
    return name


def _check_router(model_file, name, n_expert, tiers, n_embd, n_expert_used):
    info = model_file.tensor(name)
    n_rows = info.shape[0] if len(info.shape) > 1 else 1
    where = at_tensor(model_file.files[info.shard].path, name)
    if n_rows != n_expert:
        parts = " + ".join(str(tier.n_expert) for tier in tiers)
        raise GGUFError(
            f"{where}: found {plural(n_rows, 'row')}, expected {n_expert}, one an expert"
            + (
                f" ({parts} in {len(tiers)} tiers)"
                if len(tiers) > 1
                else f" of {quoted(tiers[0].down.name)}"
            )
        )
    model_file.tensor(name, (n_expert, n_embd))
    if n_expert < n_expert_used:
        raise GGUFError(
            f"{where}: found {plural(n_expert, 'expert')}, expected at least {n_expert_used}, "
            "the number used for each token (expert_used_count)"
        )


def _expect(model_file, bank, what, found, expected, *, padded=False):
    if padded:
        limit = -(-expected // PADDED_TO) * PADDED_TO
        if expected <= found <= limit:
            return
        expected = f"{expected} (up to {limit} with padding)"
    elif found == expected:
        return
    raise GGUFError(
        f"{at_tensor(model_file.files[bank.shard].path, bank.name)}: "
        f"found {what} {found}, expected {expected}"
    )
