"""Engine: a model file, loaded, and the calls a program makes on it."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from moeengine.config import EngineConfig, integer
from moeengine.engine import prompts
from moeengine.engine.generation import Completion, Stream
from moeengine.engine.runtime import Runtime
from moeengine.engine.session import Session
from moeengine.errors import ConfigError

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]
Progress = Callable[[int, int], None] | None


class Engine:
    """A loaded model with one timeline of its own; more by `session()`.

    Parameters
    ----------
    model_path : str or Path     a GGUF file, any shard of a set, or the set's folder
    settings :                   fields of EngineConfig: n_ctx, n_threads, n_ubatch, moe_mode, ...

    Raises
    ------
    GGUFError, UnsupportedError, ConfigError, OSError

    Use it as a context manager, or call `close`; dropping the last reference frees everything too.
    Threads: calls on one Engine take turns, whole calls one after another; calls on different
    sessions take turns a forward pass. A Stream that is not being read lets other calls in and
    brings its timeline back afterwards. `close` and `cancel` may come from any thread.
    In a forked child an Engine goes on to work, with threads of its own.
    """

    def __init__(self, model_path: str | os.PathLike, **settings: Any) -> None:
        runtime = Runtime.load(model_path, EngineConfig.of(settings))
        try:
            self._session = Session(runtime)
        except BaseException:
            runtime.close()
            raise
        self._runtime = runtime
        self._path = model_path

    # -- text ---------------------------------------------------------------------------------

    def generate(
        self, prompt: Prompt, *, stream: bool = False, progress: Progress = None, **settings: Any
    ) -> str | Stream:
        """The text that follows `prompt`: str, or with stream=True a Stream of pieces.

        Parameters and errors as in `complete`.
        """
        return self._session.generate(prompt, stream=stream, progress=progress, **settings)

    def complete(self, prompt: Prompt, *, progress: Progress = None, **settings: Any) -> Completion:
        """Continue a prompt and report everything about it.

        Only what the timeline does not hold yet is computed; the result never depends on that.

        Parameters
        ----------
        prompt : str, list of int, or list of {"role", "content"}
                                     empty: the model's BOS token alone
        progress : callable          progress(n_done, n_total) tokens of the prompt
        settings :                   fields of GenerationParams and SamplingParams: max_tokens,
                                     stop, logprobs, temperature, top_k, top_p, min_p, seed, ...

        Returns
        -------
        Completion

        Raises
        ------
        ConfigError                  a setting or the prompt is not what it should be
        ContextOverflowError         the prompt is longer than n_ctx; both numbers are named
        UnsupportedError             text was asked for and the tokenizer is not supported
        NumericError                 NaN in the model's routers or logits
        ClosedError
        """
        return self._session.complete(prompt, progress=progress, **settings)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        stream: bool = False,
        progress: Progress = None,
        **settings: Any,
    ) -> str | Stream:
        """The assistant's answer to a conversation, in the template that the model file carries.

        messages : list of {"role": str, "content": str}; what they say never becomes a control
        token. Otherwise as `generate`.
        """
        return self._session.chat(messages, stream=stream, progress=progress, **settings)

    def tokenize(
        self, text: str, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        """Token ids of a text, list of int."""
        return self._runtime.tokenizer().encode(
            text, add_special=add_special, parse_special=parse_special
        )

    def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of token ids."""
        tokens = prompts.token_ids(tokens, self._runtime.hparams.n_vocab)
        return self._runtime.tokenizer().decode(tokens)

    # -- numbers ------------------------------------------------------------------------------

    def logits(self, tokens: Sequence[int], ubatch: int | None = None) -> np.ndarray:
        """Logits after every token of a text begun anew.

        Parameters
        ----------
        tokens : sequence of int     T of them, at most n_ctx
        ubatch : int                 tokens computed together, at most n_ubatch; changes no bit

        Returns
        -------
        logits : float32 (T, V)

        Raises
        ------
        ConfigError, ContextOverflowError, CancelledError, NumericError, ClosedError
        """
        session = self._session
        tokens = prompts.token_ids(tokens, self._runtime.hparams.n_vocab)
        n_ubatch = session.n_ubatch if ubatch is None else integer("ubatch", ubatch, 1)
        with session.work() as call:
            return session.logits(tokens, min(n_ubatch, session.n_ubatch), call)

    def session(self, n_ctx: int | None = None) -> Session:
        """A further timeline over the same weights, with memory of its own for n_ctx tokens."""
        return Session(self._runtime, n_ctx)

    def on_routing(self, callback: Callable[[int, list[int], np.ndarray], None] | None) -> None:
        """Tell `callback` which experts were chosen, from the next forward pass on; None: nobody.

        callback(n_past, tokens, experts) : after every pass, in the thread that waits for it
            n_past : int         position of the first of `tokens`
            tokens : list of int T of them
            experts : int32 (n_moe_layers, T, A)   chosen, best first; layers as in `moe_layers`

        All sessions of this engine are watched. An exception in `callback` ends the call.
        """
        self._runtime.check_open()
        if callback is not None and not callable(callback):
            raise ConfigError(f"callback: found {callback!r}, expected a function of (n_past, tokens, experts)")
        self._runtime.routing_callback = callback

    @property
    def moe_layers(self) -> list[int]:
        """Numbers of the layers with experts, in the order of `experts` above."""
        self._runtime.check_open()
        return [block.il for block in self._runtime.model.moe_blocks]

    def stats(self) -> dict[str, Any]:
        """What the engine is and has done: dict of plain values, units in the names."""
        self._runtime.check_open()
        return self._runtime.stats()

    @property
    def hparams(self):
        """Sizes of the model: n_vocab, n_embd, n_layer, n_expert, n_ctx_train, ..."""
        return self._runtime.hparams

    @property
    def n_ctx(self) -> int:
        """Tokens a timeline can hold."""
        return self._runtime.n_ctx

    @property
    def tokenizer(self):
        """The model's Tokenizer. UnsupportedError: it needs one that is not supported."""
        return self._runtime.tokenizer()

    # -- lifetime -----------------------------------------------------------------------------

    def cancel(self) -> None:
        """End all calls under way, sessions included, soon; from any thread.

        They return what they have, with finish_reason "cancelled", or raise CancelledError where
        there is nothing to return (`eval`, `logits`). Calls begun later are not touched.
        """
        self._runtime.cancel()

    def close(self) -> None:
        """End all calls, wait for the forward pass at work, free everything. Again: nothing."""
        self._runtime.close()

    def __enter__(self) -> "Engine":
        self._runtime.check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Engine {os.fsdecode(self._path)!r}{' closed' if self._runtime.is_closed else ''}>"

    def __reduce__(self):
        raise TypeError("an Engine cannot be pickled or copied: give its path to the other process, and load it there")
