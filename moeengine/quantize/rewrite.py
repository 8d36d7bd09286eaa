"""Rewrites a GGUF model with its matrices in another quant type: plan first, then one pass over the tensors.

Memory stays at a few chunks of one tensor; the input is read through its mapping.
"""

import errno
import logging
import os
import re
import shutil
from dataclasses import dataclass

import gguf
import numpy as np

from moeengine.errors import ConfigError, NumericError, SupplyError
from moeengine.kernels import dequantize
from moeengine.loader.messages import quoted, shown_path
from moeengine.loader.model_file import ModelFile
from moeengine.loader.open_file import absolute
from moeengine.loader.tensor_info import WEIGHT_TYPES
from moeengine.quantize import quant_type, quantize
from moeengine.quantize.gguf_copy import header_bytes, metadata_entries, replacing, uint32_entry

QType = gguf.GGMLQuantizationType
log = logging.getLogger("moeengine")

# Weights that are handled at a time: 16 MiB of float32.
CHUNK_WEIGHTS = 1 << 22
# Matrices by shape that are no weights of a product or too few and too delicate to round.
KEPT = re.compile(
    r"norm|ffn_gate_inp|exp_probs|\bhc_|output_hc_|_ape\.|tid2eid|conv1d|ssm_(a|d|dt|alpha|beta|ba)\b|rope_|sinks|pos_embd|token_types|\.scale$|\.bias$|nextn\."
)
# The head and the embedding decide every token: below this type they cost more than they save.
HEAD = re.compile(r"^(output|token_embd)\.weight$")
HEAD_TYPE = QType.Q6_K
# What a type becomes for rows that are no multiple of 256: the next larger type of blocks of 32.
NARROW = {
    QType.IQ2_XXS: QType.Q4_0, QType.Q2_K: QType.Q4_0, QType.Q3_K: QType.Q4_0, QType.Q4_K: QType.Q5_0,
    QType.Q5_K: QType.Q8_0, QType.Q6_K: QType.Q8_0,
}  # fmt: skip
FILE_TYPES = {
    QType.F32: gguf.LlamaFileType.ALL_F32, QType.F16: gguf.LlamaFileType.MOSTLY_F16,
    QType.BF16: gguf.LlamaFileType.MOSTLY_BF16, QType.Q8_0: gguf.LlamaFileType.MOSTLY_Q8_0,
    QType.Q4_0: gguf.LlamaFileType.MOSTLY_Q4_0, QType.Q5_0: gguf.LlamaFileType.MOSTLY_Q5_0,
    QType.Q2_K: gguf.LlamaFileType.MOSTLY_Q2_K, QType.Q3_K: gguf.LlamaFileType.MOSTLY_Q3_K_S,
    QType.Q4_K: gguf.LlamaFileType.MOSTLY_Q4_K_S, QType.Q5_K: gguf.LlamaFileType.MOSTLY_Q5_K_S,
    QType.Q6_K: gguf.LlamaFileType.MOSTLY_Q6_K, QType.IQ2_XXS: gguf.LlamaFileType.MOSTLY_IQ2_XXS,
}  # fmt: skip


@dataclass(frozen=True)
class PlannedTensor:
    """One tensor of the output: `qtype` is what it becomes, `info` what and where it is now."""

    info: object  # TensorInfo
    qtype: QType

    @property
    def is_copied(self):
        return self.qtype == self.info.qtype

    @property
    def n_bytes(self):
        n_block, block_bytes = gguf.GGML_QUANT_SIZES[self.qtype]
        return int(np.prod(self.info.shape)) // n_block * block_bytes


def plan(model, qtype, *, overrides=(), pure=False):
    """Decide what every tensor of a model becomes.

    Parameters
    ----------
    model : ModelFile
    qtype : name or type                    what matrices become
    overrides : list of (pattern, type)     regular expression searched in the tensor's name; the first
                                            that is found decides, also for what is otherwise kept
    pure : bool                             embedding and head too, else those stay at Q6_K or better

    Returns
    -------
    list of PlannedTensor, in the order of the files

    Raises
    ------
    UnsupportedError     a type cannot be written
    ConfigError          a pattern is no regular expression or fits no tensor; an override's type does
                         not fit the rows of its tensor
    """
    wanted = quant_type(qtype)
    rules = [(_compiled(pattern), quant_type(to)) for pattern, to in overrides]
    unused = {pattern for pattern, _ in rules}
    planned = []
    for info in model.tensors.values():
        chosen = next((rule for rule in rules if rule[0].search(info.name)), None)
        if chosen:
            unused.discard(chosen[0])
            _require_whole_blocks(info, chosen[1])
            planned.append(PlannedTensor(info, chosen[1]))
        else:
            planned.append(PlannedTensor(info, _default_type(info, wanted, pure)))
    if unused:
        raise ConfigError(f"tensor pattern {quoted(unused.pop().pattern)} fits no tensor of {shown_path(model.path)}")
    return planned


def _compiled(pattern):
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"tensor pattern {quoted(pattern)}: {error}, expected a regular expression") from None


def _fits(info, qtype):
    return info.shape[-1] % gguf.GGML_QUANT_SIZES[qtype][0] == 0


def _require_whole_blocks(info, qtype):
    if not _fits(info, qtype):
        raise ConfigError(
            f"tensor {quoted(info.name)}: rows of {info.shape[-1]} weights do not fit {qtype.name}, "
            f"expected a multiple of {gguf.GGML_QUANT_SIZES[qtype][0]}"
        )


def _bits(qtype):
    n_block, block_bytes = gguf.GGML_QUANT_SIZES[qtype]
    return 8 * block_bytes / n_block


def _default_type(info, wanted, pure):
    if len(info.shape) < 2 or KEPT.search(info.name) or info.qtype not in WEIGHT_TYPES:
        return info.qtype
    if HEAD.search(info.name) and not pure and _bits(wanted) < _bits(HEAD_TYPE):
        wanted = HEAD_TYPE
    if not _fits(info, wanted):
        wanted = NARROW.get(wanted, wanted)
    return wanted if _fits(info, wanted) else info.qtype


def rewrite(path, out, qtype, *, imatrix=None, overrides=(), pure=False, force=False, progress=None):
    """Write a model again with its matrices in another quant type.

    Metadata and every tensor that keeps its type are the same bytes as before; a set of shards becomes one file.
    The output appears under its name only when it is whole.

    Parameters
    ----------
    path, out : path-like
    qtype, overrides, pure : see `plan`
    imatrix : dict of name -> float32 (X, 1, C), optional    see `read_imatrix`
    force : bool                  replace an output that exists (never the input)
    progress : callable, optional (PlannedTensor, bytes written, bytes in all), after each tensor

    Returns
    -------
    list of PlannedTensor

    Raises
    ------
    ConfigError      output is the input or exists; importance of another width; see also `plan`
    GGUFError        the input is not sound
    SupplyError      the output cannot be written, or the disk has no room for it; the input lost bytes meanwhile
    NumericError     weights are not finite
    """
    with ModelFile.open(path) as model:
        check_output(model, out, force)
        planned = plan(model, qtype, overrides=overrides, pure=pure)
        header, offsets, total_bytes = header_bytes(
            _new_metadata(model, quant_type(qtype)),
            [(p.info.name, p.qtype, p.info.shape, p.n_bytes) for p in planned],
            model.files[0].alignment,
        )
        _check_imatrix(planned, imatrix or {}, qtype)
        check_room(out, total_bytes)
        with replacing(out) as file:
            file.write(header)
            for tensor, offset in zip(planned, offsets, strict=True):
                pieces = _tensor_parts(model, tensor, (imatrix or {}).get(tensor.info.name))
                write_tensor(file, tensor, offset, pieces, model)
                if progress:
                    progress(tensor, file.tell(), total_bytes)
            file.write(b"\0" * (total_bytes - file.tell()))
            model.require_whole()
    return planned


def write_tensor(file, tensor, offset, pieces, model):
    """The bytes of one planned tensor, an iterable of pieces, at `offset` of a file that is not yet so long.

    SupplyError: the pieces come from a file of `model` that has lost bytes meanwhile.
    """
    file.write(b"\0" * (offset - file.tell()))
    try:
        for piece in pieces:
            file.write(piece)
    except OSError as error:
        if error.errno == errno.EFAULT:  # the system found no bytes behind the mapping
            model.require_whole()
        raise
    assert file.tell() == offset + tensor.n_bytes


def check_output(model, out, force):
    """ConfigError where `out` is the input, a folder, or a file that may not be replaced."""
    if not os.fspath(out):
        raise ConfigError("output: found an empty path, expected the name of a file to write")
    if not os.path.exists(out):
        return
    if any(os.path.samefile(out, file.path) for file in model.files):
        raise ConfigError(f"{shown_path(out)}: the output is the input, expected another name")
    if os.path.isdir(out):
        raise ConfigError(f"{shown_path(out)}: found a folder, expected the name of a file to write")
    if not force:
        raise ConfigError(
            f"{shown_path(out)}: exists already; choose another name or allow it to be replaced (--force)"
        )


def check_room(out, total_bytes):
    """ConfigError, SupplyError: no folder, or not enough room on its disk."""
    folder = absolute(out).parent
    if not os.path.isdir(folder):
        raise ConfigError(f"{shown_path(out)}: no folder {shown_path(folder)} to write into")
    free = shutil.disk_usage(folder).free
    if total_bytes > free:
        raise SupplyError(f"{shown_path(out)}: needs {total_bytes} bytes, but only {free} are free on its disk")


def _check_imatrix(planned, imatrix, qtype):
    if not imatrix and any(p.qtype == QType.IQ2_XXS and not p.is_copied for p in planned):
        log.warning("IQ2_XXS without an importance matrix loses much quality; see --imatrix")
    for tensor in planned:
        found = imatrix.get(tensor.info.name)
        if found is None or tensor.is_copied:
            continue
        shape = tensor.info.shape
        expected = {(1, 1, shape[-1]), (shape[0] if len(shape) == 3 else 1, 1, shape[-1])}
        if found.shape not in expected:
            # The older form holds the experts of a bank one after the other.
            if found.size == shape[0] * shape[-1] and len(shape) == 3:
                imatrix[tensor.info.name] = found.reshape(shape[0], 1, shape[-1])
                continue
            raise ConfigError(
                f"importance of {quoted(tensor.info.name)}: found shape {found.shape}, expected {max(expected)}; "
                "it belongs to another model"
            )


def _new_metadata(model, qtype):
    first = model.files[0]
    entries = metadata_entries(first.path, first.data_offset)
    entries = {key: raw for key, raw in entries.items() if not key.startswith("split.")}
    keys = gguf.Keys.General
    entries[keys.FILE_TYPE] = uint32_entry(keys.FILE_TYPE, FILE_TYPES[qtype])
    entries[keys.QUANTIZATION_VERSION] = uint32_entry(keys.QUANTIZATION_VERSION, gguf.GGML_QUANT_VERSION)
    return entries


def _tensor_parts(model, tensor, importance):
    """Yield the bytes of one output tensor, a chunk at a time."""
    raw = model.raw(tensor.info.name)
    rows = raw.reshape(-1, raw.shape[-1])
    n_columns = tensor.info.shape[-1]
    step = max(1, CHUNK_WEIGHTS // n_columns)
    for first in range(0, len(rows), step):
        part = rows[first : first + step]
        if tensor.is_copied:
            yield part
            continue
        values = dequantize(part, tensor.info.qtype)
        try:
            yield quantize(values, tensor.qtype, importance=_rows_of(importance, tensor, first, len(part)))
        except NumericError as error:
            raise NumericError(f"{shown_path(model.path)}: tensor {quoted(tensor.info.name)}: {error}") from None


def _rows_of(importance, tensor, first, count):
    """Importance of rows [first, first + count) of all experts laid end to end, float32 (count, C) or (1, C)."""
    if importance is None or len(importance) == 1:
        return None if importance is None else importance[0]
    expert = np.arange(first, first + count) // tensor.info.shape[-2]
    return importance[expert, 0]
