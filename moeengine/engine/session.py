"""A Session is one timeline of tokens over shared weights; it owns a KV cache."""

import contextlib
import functools
import logging
import os
from collections.abc import Sequence

import numpy as np

from moeengine.config import N_CTX_MAX, GenerationParams, integer
from moeengine.engine import kv_file, prompts
from moeengine.engine.generation import Generation, Stream
from moeengine.engine.turns import Call, Cancellations, Turns
from moeengine.errors import (
    CancelledError,
    ClosedError,
    ConfigError,
    ContextOverflowError,
    UnsupportedError,
)

logger = logging.getLogger("moeengine")


class Session:
    """One timeline. Made by `Engine.session()`; several may be used from several threads.

    Calls on one Session from several threads take turns. A call that was cancelled or interrupted
    leaves the timeline at the last chunk that was complete, and usable.
    """

    def __init__(self, runtime, n_ctx=None):
        self._runtime = runtime
        self._tokens = []  # what the context holds; a list, shortened before it is overwritten
        self._follower = None  # the generation that the timeline follows, until another call
        self._turns = Turns()
        self._cancellations = Cancellations()
        self._is_closed = False
        self._context = None
        n_ctx = runtime.n_ctx if n_ctx is None else integer("n_ctx", n_ctx, 1, N_CTX_MAX)
        self._context, self.n_ubatch = runtime.new_context(self, n_ctx)
        self._n_ctx = n_ctx
        self._logits = np.empty((1, runtime.hparams.n_vocab), np.float32)

    # -- the timeline -------------------------------------------------------------------------

    @property
    def n_ctx(self) -> int:
        """Tokens the timeline can hold."""
        return self._n_ctx

    @property
    def n_past(self) -> int:
        """Tokens the timeline holds."""
        return len(self._tokens)

    @property
    def tokens(self) -> list[int]:
        """The tokens of the timeline, a new list."""
        return list(self._tokens)

    def eval(self, tokens: Sequence[int]) -> np.ndarray:
        """Append tokens to the timeline.

        Parameters
        ----------
        tokens : sequence of int     at least one, each below n_vocab

        Returns
        -------
        logits : float32 (V,)        after the last; yours to keep

        Raises
        ------
        ConfigError                  no token, or one outside the vocabulary
        ContextOverflowError         they do not fit; nothing was computed
        CancelledError, ClosedError, NumericError
        """
        tokens = prompts.token_ids(tokens, self._runtime.hparams.n_vocab)
        if not tokens:
            raise ConfigError("tokens: found none, expected at least one")
        with self.work() as call:
            self.check_fits(len(self._tokens) + len(tokens))
            self._follower = None
            return self._append(tokens, call).copy()

    def rewind(self, n: int) -> None:
        """Keep the first n tokens of the timeline and forget the rest. ConfigError: n > n_past."""
        with self.work():
            n = integer("n", n, 0, len(self._tokens))
            self._follower = None
            del self._tokens[n:]

    def save(self, path: str | os.PathLike) -> None:
        """Write the timeline and what the model keeps of it to a file, whole or not at all.

        Raises
        ------
        OSError, ClosedError
        """
        with self.work() as call:
            self._make_ready(call)
            kv_file.save(path, self._runtime.model_file, self._tokens, self._context)

    def load(self, path: str | os.PathLike) -> None:
        """Replace the timeline by one that `save` wrote with the same model.

        Raises
        ------
        ConfigError                  not such a file, damaged, or of another model
        ContextOverflowError         it holds more tokens than n_ctx
        OSError, ClosedError
        """
        with self.work():
            runtime = self._runtime
            saved = kv_file.load(path, runtime.model_file, runtime.hparams.n_vocab, self._n_ctx)
            self.check_fits(len(saved.tokens))
            self._follower = None
            self._tokens.clear()  # first: a failure below leaves an empty timeline
            try:
                self._context.set_kv_state(saved.kv, len(saved.tokens))
            except ConfigError as error:  # as of a version that kept more of the timeline, or less
                raise ConfigError(f"{path}: {error}") from None
            self._tokens += saved.tokens

    # -- text ---------------------------------------------------------------------------------

    def stream(self, prompt, *, progress=None, **settings):
        """A Stream of the answer's pieces; nothing is computed before the first is asked for.

        Parameters and errors as in `Engine.complete`.
        """
        runtime = self._runtime
        if progress is not None and not callable(progress):
            raise ConfigError(f"progress: found {progress!r}, expected a function of (n_done, n_total)")
        call = runtime.new_call(self._cancellations)
        params = GenerationParams.of(settings)
        tokens = prompts.prompt_tokens(runtime, prompt, params)
        generation = Generation(
            tokens,
            params,
            tokenizer=runtime.tokenizer(),
            has_text=self._has_text(prompt, params),
            call=call,
            n_vocab=runtime.hparams.n_vocab,
            n_ctx=self._n_ctx,
            counters=runtime.counters,
            progress=progress,
        )
        return Stream(self, generation)

    def complete(self, prompt, *, progress=None, **settings):
        """The answer with all that is known about it: a Completion. See `Engine.complete`."""
        stream = self.stream(prompt, progress=progress, **settings)
        with self._runtime.blas.one_thread():
            for _ in stream:
                pass
        return stream.result

    def generate(self, prompt, *, stream=False, progress=None, **settings):
        """The text of `complete`, or with stream=True a Stream of its pieces."""
        self._runtime.tokenizer().stream()  # text is asked for: say at once if there can be none
        if stream:
            return self.stream(prompt, progress=progress, **settings)
        return self.complete(prompt, progress=progress, **settings).text

    def chat(self, messages, *, stream=False, progress=None, **settings):
        """`generate` for a conversation: a list of {"role", "content"} in the model's template."""
        if not prompts.is_messages(messages):
            raise ConfigError("messages: found no list of dicts, expected role and content in each")
        return self.generate(messages, stream=stream, progress=progress, **settings)

    def cancel(self) -> None:
        """End what is under way on this session soon, from any thread."""
        self._cancellations.n += 1
        self._runtime.cancel(self._context)

    def _has_text(self, prompt, params):
        """Whether answers can be text. UnsupportedError: they cannot, and a text is involved."""
        try:
            self._runtime.tokenizer().stream()
            return True
        except UnsupportedError as error:
            if isinstance(prompt, str) or prompts.is_messages(prompt) or params.stop:
                raise
            logger.warning("token ids only, no text: %s", error)
            return False

    # -- for Generation and Stream ------------------------------------------------------------

    @contextlib.contextmanager
    def work(self, call=None, *, lease=False):
        """The turn on this timeline, for `call` or a new one; yields the call."""
        call = call or self._runtime.new_call(self._cancellations)
        try:
            with self._turns.take(call, lease=lease), self._runtime.blas.one_thread():
                try:
                    self.check_open()
                    yield call
                finally:
                    if self._is_closed or self._runtime.is_closed:
                        self._drop()
        except CancelledError:
            self.check_open()  # closed from another thread: say that rather than "cancelled"
            raise

    def follow(self, generation):
        """Bring the timeline to the prompt and tokens of `generation`, computing what it lacks.

        Returns logits, float32 (V,), valid until the next call. The caller has the turn.
        """
        call = generation.call
        if call.is_cancelled():
            raise CancelledError("cancelled")
        if self._follower is call:  # nobody came between: only the last token is new
            return self._append(generation.tokens[-1:], call)
        wanted = generation.prompt + generation.tokens
        n_reused = min(_common_prefix(self._tokens, wanted), len(wanted) - 1)
        n_reused = self._context.n_ready(n_reused)
        logger.info(
            "prompt of %d tokens: %d reused, %d to compute",
            len(wanted),
            n_reused,
            len(wanted) - n_reused,
        )
        if not generation.tokens:
            generation.n_reused = n_reused
            counters = self._runtime.counters
            counters.n_generations += 1
            counters.n_reused_tokens += n_reused
            counters.last_seed = generation.seed
        self._follower = None
        del self._tokens[n_reused:]
        logits = self._append(wanted[n_reused:], call, generation.progress)
        self._follower = call
        return logits

    def logits(self, tokens, n_ubatch, call):
        """Logits after every token, float32 (T, V), of a new timeline. The caller has the turn."""
        self.check_fits(len(tokens))
        self._follower = None
        self._tokens.clear()
        out = np.empty((len(tokens), self._runtime.hparams.n_vocab), np.float32)
        for begin in range(0, len(tokens), n_ubatch):
            rows = slice(begin, begin + n_ubatch)
            self._forward(tokens[rows], "all", out[rows], call)
        return out

    def _append(self, tokens, call, progress=None):
        """Compute `tokens` in chunks; returns logits, float32 (V,), after the last."""
        n = len(tokens)
        for begin in range(0, n, self.n_ubatch):
            chunk = tokens[begin : begin + self.n_ubatch]
            tick = None
            if progress is not None:
                progress(begin, n)
                tick = functools.partial(self._tick, progress, begin, len(chunk), n)
            outputs = "last" if begin + len(chunk) == n else "none"
            self._forward(chunk, outputs, self._logits, call, tick)
        if progress is not None:
            progress(n, n)
        return self._logits[0]

    def _tick(self, progress, begin, n_chunk, n):
        progress(begin + int(n_chunk * self._context.fraction_done), n)

    def _forward(self, chunk, outputs, logits, call, tick=None):
        """One pass that appends `chunk`; see Runtime.forward."""
        context, n_past, watch = self._context, len(self._tokens), self._runtime.routing_callback
        ids = np.array(chunk, np.int32)
        is_done = False
        while not is_done:
            self._make_ready(call)
            context.record_routing = watch is not None
            is_done = self._runtime.forward(context, ids, n_past, outputs, logits, call, tick)
        self._tokens += chunk
        if watch is not None and context.trace is not None:
            watch(n_past, chunk, context.trace)

    def _make_ready(self, call):
        """Compute again what the context needs before the timeline can go on: a recurrent state that has seen tokens which
        were taken back, or a pass that broke off. The timeline stays as it is, whatever happens."""
        context = self._context
        context.record_routing = False
        while (n := context.n_ready(len(self._tokens))) < len(self._tokens):
            ids = np.array(self._tokens[n : n + self.n_ubatch], np.int32)
            self._runtime.forward(context, ids, n, "none", None, call)

    # -- lifetime -----------------------------------------------------------------------------

    def check_fits(self, n_tokens):
        """ContextOverflowError where a timeline of n_tokens would be too long."""
        if n_tokens > self._n_ctx:
            raise ContextOverflowError(
                f"context: found {n_tokens} tokens, expected at most n_ctx, which is {self._n_ctx}"
            )

    def check_open(self):
        """ClosedError after `close`, of this session or of its engine."""
        self._runtime.check_open()
        if self._is_closed:
            raise ClosedError("session: found it closed, expected it open")

    @property
    def has_context(self):
        return self._context is not None

    def close(self) -> None:
        """Free the timeline; ends a call that is at work on it. Again: nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        self.cancel()
        if not self._turns.is_mine():  # inside a call of its own: `work` frees at the call's end
            with self._turns.take(Call()):
                self._drop()

    def _drop(self):
        self._context = None
        self._tokens.clear()
        self._runtime.release()

    def __enter__(self):
        self.check_open()
        return self

    def __exit__(self, *_):
        self.close()

    def __repr__(self):
        if self._is_closed or self._runtime.is_closed:
            return "<Session closed>"
        return f"<Session with {len(self._tokens)} of {self._n_ctx} tokens>"

    def __reduce__(self):
        raise TypeError("a Session cannot be pickled or copied: save and load take a timeline elsewhere")


def _common_prefix(a, b):
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return next(i for i in range(n) if a[i] != b[i])
