"""Stock llama.cpp, or ik_llama.cpp, as a worker: `python -m bench.stock_worker` with a Python that
has `llama-cpp-python` (or `ik-llama-cpp-python`, with MOEBENCH_PEER=ik). Uses the low-level C API
only, so that nothing of the Python wrappers is on the clock.
"""

import ctypes
import os
import resource
import time

import numpy as np

from bench.worker import serve


class Stock:
    """One model and one context of llama.cpp."""

    def load(self, path, n_ctx, n_threads, n_ubatch=512, use_mmap=True):
        """Load `path`; a later load replaces the first. Returns the vocabulary size."""
        self.api = api = _Api()
        api.llama_backend_init()
        params = api.llama_model_default_params()
        params.n_gpu_layers = 0
        params.use_mmap = use_mmap
        self.model = api.llama_model_load_from_file(path.encode(), params)
        if not self.model:
            raise RuntimeError(f"cannot load {path}")
        params = api.llama_context_default_params()
        params.n_ctx = n_ctx
        params.n_batch = self.n_batch = max(n_ubatch, 512)
        params.n_ubatch = n_ubatch
        params.n_threads = params.n_threads_batch = n_threads
        self.ctx = api.llama_init_from_model(self.model, params)
        if not self.ctx:
            raise RuntimeError(f"cannot make a context of {n_ctx} tokens")
        self.batch = api.llama_batch_init(self.n_batch, 0, 1)
        self.n_past, self.fed = 0, []
        self.n_vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))
        return self.n_vocab

    def prefill(self, tokens):
        """Seconds for the whole prompt on an empty cache, logits of the last token ready."""
        self._rewind(0)
        start = time.perf_counter()
        self._feed(tokens)
        self._last_logits()
        return time.perf_counter() - start

    def fill(self, tokens):
        """Make `tokens` the whole context, off the clock."""
        self._rewind(0)
        self._feed(tokens)

    def decode(self, tokens):
        """Seconds to feed `tokens` one by one; the context is then as before."""
        depth = self.n_past
        start = time.perf_counter()
        for token in tokens:
            self._feed([token])
            self._last_logits()
        seconds = time.perf_counter() - start
        self._rewind(depth)
        return seconds

    def logits(self, tokens, save_to, ubatch=None):
        """Save float32 (T, V) logits of every position to a .npy file, fed `ubatch` at a time: a number, or a list of them.

        After the last of a list its number goes on.
        """
        self._rewind(0)
        out = np.empty((len(tokens), self.n_vocab), np.float32)
        steps = list(ubatch) if isinstance(ubatch, list) else [ubatch or self.n_batch]
        i = 0
        while i < len(tokens):
            part = tokens[i : i + (steps.pop(0) if len(steps) > 1 else steps[0])]
            self._feed(part, every=True)
            for j in range(len(part)):
                out[i + j] = self._row(j)
            i += len(part)
        np.save(save_to, out)

    def greedy(self, tokens, n):
        """Ids of the `n` tokens that follow."""
        self._rewind(0)
        self._feed(tokens)
        out = []
        for _ in range(n):
            out.append(int(np.argmax(self._last_logits())))
            self._feed(out[-1:])
        return out

    def info(self):
        """Peak resident bytes and processor seconds of this process, name of the peer."""
        use = resource.getrusage(resource.RUSAGE_SELF)
        version = f"{self.api.package} {self.api.version}"
        return {
            "peak_bytes": use.ru_maxrss * 1024, "cpu_s": use.ru_utime + use.ru_stime, "version": version,
        }  # fmt: skip

    def matrix(self, raw, type_id, x, n_threads):
        """Prepare one product: paths of .npy files with uint8 (R, bytes) and float32 (T, C)."""
        from bench.stock_graph import Product

        if getattr(self, "product", None):
            self.product.free()
        self.product = Product(np.load(raw), type_id, np.load(x), n_threads)

    def multiply(self, save_to=None, warm_s=0.0):
        """Seconds of the prepared product after others that took `warm_s`; its float32 (T, R) result into a .npy file."""
        start = time.perf_counter()
        while time.perf_counter() - start < warm_s:
            self.product.run()
        seconds = self.product.run()
        if save_to:
            np.save(save_to, self.product.out)
        return seconds

    def _feed(self, tokens, every=False):
        for i in range(0, len(tokens), self.n_batch):
            part = tokens[i : i + self.n_batch]
            self._feed_batch(part, every, is_last=i + len(part) == len(tokens))

    def _feed_batch(self, part, every, is_last):
        b = self.batch
        b.n_tokens = len(part)
        for i, token in enumerate(part):
            b.token[i] = token
            b.pos[i] = self.n_past + i
            b.n_seq_id[i] = 1
            b.seq_id[i][0] = 0
            b.logits[i] = every or (is_last and i == len(part) - 1)
        status = self.api.llama_decode(self.ctx, b)
        if status:
            raise RuntimeError(f"llama_decode returned {status}")
        self.n_past += len(part)
        self.fed += part
        self.last = len(part) - 1

    def _row(self, i):
        return np.ctypeslib.as_array(self.api.llama_get_logits_ith(self.ctx, i), (self.n_vocab,))

    def _last_logits(self):
        return self._row(self.last)

    def _rewind(self, n):
        kept = self.fed[:n]
        if not self.api.rewind(self.ctx, n):  # a recurrent state cannot be taken back
            self.api.rewind(self.ctx, 0)
            self.n_past, self.fed = 0, []
            if kept:
                self._feed(kept)
        self.n_past, self.fed = n, kept


class _Api:
    """The C functions of either package under one set of names."""

    def __init__(self):
        if os.environ.get("MOEBENCH_PEER") == "ik":
            from ik_llama_cpp import __version__, _ctypes_api as module

            self.package = "ik-llama-cpp-python"
            seq_rm = module._lib.llama_kv_cache_seq_rm
            seq_rm.argtypes = [ctypes.c_void_p] + [ctypes.c_int32] * 3
            seq_rm.restype = ctypes.c_bool
            self.rewind = lambda ctx, n: seq_rm(ctx, 0, n, -1)
        else:
            from llama_cpp import __version__, llama_cpp as module

            self.package = "llama-cpp-python"
            self.rewind = lambda ctx, n: module.llama_memory_seq_rm(
                module.llama_get_memory(ctx), 0, n, -1
            )
        self.version = __version__
        self._module = module

    def __getattr__(self, name):
        return getattr(self._module, name)


if __name__ == "__main__":
    serve(Stock())
