"""moeengine as a worker: the same commands as `bench.stock_worker`."""

import resource
import time

import numpy as np

from bench.worker import serve


class Ours:
    """One Engine with one Session."""

    def load(self, path, n_ctx, n_threads, **options):
        """Load `path`; `options` go to Engine. Returns the vocabulary size."""
        from moeengine import Engine

        self.engine = Engine(path, n_ctx=n_ctx, n_threads=n_threads, **options)
        self.session = self.engine.session()
        return len(self.session.eval([0]))

    def prefill(self, tokens):
        """Seconds for the whole prompt on an empty cache, logits of the last token ready."""
        self.session.rewind(0)
        start = time.perf_counter()
        self.session.eval(tokens)
        return time.perf_counter() - start

    def fill(self, tokens):
        """Make `tokens` the whole context, off the clock."""
        self.prefill(tokens)

    def decode(self, tokens):
        """Seconds to feed `tokens` one by one; the context is then as before."""
        depth = self.session.n_past
        start = time.perf_counter()
        for token in tokens:
            self.session.eval([token])
        seconds = time.perf_counter() - start
        kept = self.session.tokens[:depth]
        self.session.rewind(depth)
        if self.session._context.n_ready(depth) < depth:  # a recurrent state is computed again now, not on the clock
            self.session.rewind(0)
            self.session.eval(kept)
        return seconds

    def logits(self, tokens, save_to, ubatch=None):
        """Save float32 (T, V) logits of every position, fed `ubatch` at a time, to a .npy file."""
        np.save(save_to, np.asarray(self.engine.logits(tokens, ubatch)))

    def greedy(self, tokens, n):
        """Ids of the `n` tokens that follow."""
        self.session.rewind(0)
        last, out = self.session.eval(tokens), []
        for _ in range(n):
            out.append(int(np.argmax(last)))
            last = self.session.eval(out[-1:])
        return out

    def stats(self):
        """`Engine.stats()` as plain JSON."""
        import json

        return json.loads(json.dumps(self.engine.stats(), default=str))

    def info(self):
        """Peak resident bytes and processor seconds of this process, version and instruction set."""
        import moeengine
        from moeengine import kernels

        use = resource.getrusage(resource.RUSAGE_SELF)
        version = f"moeengine {getattr(moeengine, '__version__', '')} {kernels.isa()['active']}"
        return {
            "peak_bytes": use.ru_maxrss * 1024, "cpu_s": use.ru_utime + use.ru_stime, "version": version,
        }  # fmt: skip


if __name__ == "__main__":
    serve(Ours())
