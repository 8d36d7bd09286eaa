"""A model and a tokenizer in a few lines of Python, to test everything above the graph.

The fake context keeps what the KV cache would hold, so that a wrong n_past shows in the logits.
"""

import os
import threading
import time
import zlib
from types import SimpleNamespace

import numpy as np

from moeengine.engine import Engine
from moeengine.engine.runtime import Runtime
from moeengine.errors import CancelledError, ConfigError

BOS, EOS, IM_END, THINK, CHANNEL, MESSAGE = range(256, 262)
SPECIAL = {BOS: "<s>", EOS: "</s>", IM_END: "<|im_end|>", THINK: "<think>", CHANNEL: "<|channel|>", MESSAGE: "<|message|>"}
N_VOCAB = 264


class FakeTokenizer:
    """One token a byte, and a few control tokens."""

    n_vocab, bos_id, eos_id, eot_id, eog_ids, add_bos = N_VOCAB, BOS, EOS, IM_END, {EOS}, True

    def encode(self, text, add_special=True, parse_special=False):
        ids = [BOS] if add_special else []
        while text:
            for token, name in SPECIAL.items():
                if parse_special and text.startswith(name):
                    ids.append(token)
                    text = text[len(name) :]
                    break
            else:
                ids += text[0].encode()
                text = text[1:]
        return ids

    def require_text(self):
        pass

    def stream(self):
        return None

    def decode(self, ids):
        return b"".join(self.token_bytes(i) for i in ids).decode("utf-8", "replace")

    def is_special(self, token):
        return token in SPECIAL

    def token_text(self, token):
        return SPECIAL[token]

    def token_bytes(self, token):
        return b"" if token in SPECIAL else bytes([token % 256])


class FakeContext:
    def __init__(self, model, n_ctx, n_ubatch):
        self.model, self.n_ctx, self.n_ubatch = model, n_ctx, n_ubatch
        self.held = []
        self.record_routing, self.trace = False, None
        self.fraction_done = 0.0
        self.computed = []  # sizes of the chunks
        self.busy = threading.Lock()
        self.pid = os.getpid()
        self._is_cancelled = False  # no Event: Ctrl-C inside its wait would leave its lock taken, or not

    def forward(self, tokens, n_past, outputs, logits):
        if self.pid != os.getpid():  # forked: a pass of the parent's threads is none of ours
            self.pid, self.busy, self._is_cancelled = os.getpid(), threading.Lock(), False
            self.model.lock, self.model.n_at_once = threading.Lock(), 0
        assert self.busy.acquire(blocking=False), "two passes at once on one context"
        try:
            self._forward(tokens.tolist(), n_past, outputs, logits)
        finally:
            self._is_cancelled = False
            self.busy.release()

    def thrown_out(self):
        """Forget a pass that a signal ended between two statements here, which compiled code has not."""
        self.busy, self.model.lock, self.model.n_at_once = threading.Lock(), threading.Lock(), 0

    def _forward(self, tokens, n_past, outputs, logits):
        model = self.model
        assert 1 <= len(tokens) <= self.n_ubatch and 0 <= n_past <= len(self.held)
        assert n_past + len(tokens) <= self.n_ctx and outputs in ("last", "all", "none")
        with model.lock:
            model.n_at_once += 1
            assert model.n_at_once == 1, "two passes at once over one team"
        try:
            del self.held[n_past:]
            for i, token in enumerate(tokens):
                time.sleep(model.delay_s)
                if self._is_cancelled:
                    raise CancelledError("cancelled")
                if model.on_token:
                    model.on_token(self)
                self.held.append(token)
                self.fraction_done = i / len(tokens)
                if outputs == "all":
                    logits[i] = model.logits(self.held)
        finally:
            model.n_at_once -= 1
        if outputs == "last":
            logits[0] = model.logits(self.held)
        self.computed.append(len(tokens))
        self.trace = np.zeros((2, len(tokens), 2), np.int32) if self.record_routing else None

    def cancel(self):
        self._is_cancelled = True

    def n_ready(self, n_past):
        return n_past

    def kv_state(self, n_past):
        return np.array(self.held[:n_past], np.uint16)

    def set_kv_state(self, state, n_past):
        if state.size != n_past:
            raise ConfigError("KV state: found another size")
        self.held = state.tolist()


class FakeModel:
    """Logits that depend on every token held; `answer` makes one text the greedy answer.

    answer : dict        number of tokens held -> token that is likeliest then
    """

    def __init__(self, n_ctx_train=64, delay_s=0.0, on_token=None):
        self.hparams = SimpleNamespace(
            arch="fake",
            n_vocab=N_VOCAB,
            n_ctx_train=n_ctx_train,
            n_embd=8,
            n_layer=2,
            n_expert=4,
            n_expert_used=2,
        )
        self.delay_s, self.on_token = delay_s, on_token
        self.answer = {}
        self.contexts = []
        self.lock, self.n_at_once = threading.Lock(), 0

    def new_context(self, n_ctx, n_ubatch, team, swa_full):
        self.contexts.append(FakeContext(self, n_ctx, n_ubatch))
        return self.contexts[-1]

    def say(self, n_prompt, text):
        """Make `text`, str or list of ids, the greedy answer to a prompt of n_prompt tokens."""
        ids = list(text.encode()) if isinstance(text, str) else text
        self.answer |= {n_prompt + i: token for i, token in enumerate(ids)}

    def logits(self, held):
        seed = zlib.crc32(np.array(held, np.int32).tobytes())
        row = np.random.default_rng(seed).standard_normal(N_VOCAB).astype(np.float32)
        row[list(SPECIAL)] = -10
        if len(held) in self.answer:
            row[self.answer[len(held)]] = 30
        return row


class FakeModelFile:
    architecture, tensors, metadata, total_bytes = "fake", {}, {}, 0

    def take_missing(self):
        return ""

    def __init__(self):
        self.is_open = True

    def close(self):
        self.is_open = False


def fake_engine(monkeypatch, model=None, tokenizer=FakeTokenizer, **settings):
    """An Engine on a FakeModel: (engine, model)."""
    model = model or FakeModel()

    def load(path, config):
        runtime = Runtime(FakeModelFile(), model, SimpleNamespace(n_threads=1), config)
        runtime._tokenizer = tokenizer()
        return runtime

    monkeypatch.setattr(Runtime, "load", load)
    return Engine("fake.gguf", **settings), model


def wait_until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.001)
