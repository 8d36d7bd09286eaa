"""Seeded, bounded fuzzing of the header: whatever stands in a file, opening it works or gives our own error.

MOEENGINE_FUZZ_ROUNDS raises the number of files tried a kind; MOEENGINE_FUZZ_SEED moves the seed.
"""

import os
import random
import struct
import time

import pytest

from moeengine.errors import GGUFError, UnsupportedError
from moeengine.loader.banks import all_banks
from moeengine.loader.gguf_file import open_gguf
from moeengine.loader.metadata import StringArray
from moeengine.loader.model_file import ModelFile
from tests.tiny import write_tiny

ROUNDS = int(os.environ.get("MOEENGINE_FUZZ_ROUNDS", "400"))
SEED = int(os.environ.get("MOEENGINE_FUZZ_SEED", "1"))
SLOWEST_S = 1.0
EDGES = [0, 1, 3, 4, 5, 7, 8, 9, 12, 13, 31, 32, 33, 255, 2**15, 2**16, 2**20, 2**30, 2**31 - 1, 2**31, 2**32 - 1, 2**32,
         2**60, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 1]  # fmt: skip


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    tiny = write_tiny(folder / "tiny.gguf", n_layer=1, n_expert=2, tiers=[(1, "Q8_0"), (1, "Q4_0")])
    return tiny.path.read_bytes(), open_gguf(tiny.path).data_offset, folder / "fuzzed.gguf"


def flip_bytes(rng, data, end):
    for _ in range(rng.choice((1, 1, 2, 8))):
        data[rng.randrange(end)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def flip_bits(rng, data, end):
    for _ in range(rng.choice((1, 3))):
        data[rng.randrange(end)] ^= 1 << rng.randrange(8)


def splice_field(rng, data, end):
    """Put an edge value where some 32- or 64-bit field may be."""
    value, code = rng.choice(EDGES), rng.choice("IQ")
    at = rng.randrange(end - 8)
    data[at : at + struct.calcsize(code)] = struct.pack(
        "<" + code, value & (2**32 - 1 if code == "I" else 2**64 - 1)
    )


def splice_length(rng, data, end):
    """Replace the length in front of a name that is really there."""
    names = [b"general", b"qwen3moe", b"tokenizer", b"blk.", b"token_embd"]
    places = [i for name in names for i in _all_places(data, name, end) if i >= 8]
    at = rng.choice(places) - 8
    data[at : at + 8] = struct.pack("<Q", rng.choice(EDGES))


def cut(rng, data, end):
    del data[rng.randrange(end) :]


def delete_piece(rng, data, end):
    at = rng.randrange(end)
    del data[at : at + rng.choice((1, 4, 8, 100))]


def repeat_piece(rng, data, end):
    at, n = rng.randrange(end), rng.choice((1, 4, 8, 40, 1000))
    data[at:at] = data[at : at + n]


def move_piece(rng, data, end):
    source, target, n = rng.randrange(end), rng.randrange(end), rng.choice((4, 8, 64))
    data[target : target + n] = data[source : source + n]


MUTATIONS = [
    flip_bytes,
    flip_bits,
    splice_field,
    splice_length,
    cut,
    delete_piece,
    repeat_piece,
    move_piece,
]


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda f: f.__name__)
def test_only_our_errors_come_out(sound, mutate):
    original, header_bytes, path = sound
    rng = random.Random(f"{mutate.__name__} {SEED}")
    opened = refused = 0
    for i in range(ROUNDS):
        data = bytearray(original)
        mutate(rng, data, header_bytes)
        path.write_bytes(data)
        start = time.process_time()
        try:
            read_everything(path)
            opened += 1
        except (GGUFError, UnsupportedError) as err:
            refused += 1
            assert str(err).isprintable() and str(path) in str(err)
        except BaseException as err:
            raise AssertionError(
                f"round {i} of {mutate.__name__}: {type(err).__name__}: {err}"
            ) from err
        assert time.process_time() - start < SLOWEST_S
    assert refused > 0, "the mutations did nothing"


def read_everything(path):
    """What an engine would touch: all metadata, all tensors' first and last bytes, all expert slices."""
    with ModelFile.open(path) as model:
        for value in model.metadata.values():
            if isinstance(value, StringArray):
                assert len(value.tolist()) == len(value)
                if len(value):
                    value.raw(-1)
        for name in model.tensors:
            view = model.raw(name).reshape(-1)
            int(view[0]) + int(view[-1])
        n_layer = model.get_int("qwen3moe.block_count", lo=0, hi=1000)
        n_embd = model.get_int("qwen3moe.embedding_length", lo=1)
        for layer in filter(None, all_banks(model, n_layer, n_embd=n_embd)):
            for ie in range(min(layer.n_expert, 1000)):
                for shard, offset, n_bytes in layer.slices(ie):
                    assert 0 <= offset <= offset + n_bytes <= model.files[shard].file_size


def _all_places(data, word, end):
    places, at = [], data.find(word, 0, end)
    while at >= 0:
        places.append(at)
        at = data.find(word, at + 1, end)
    return places
