"""One request for text: prompt in, pieces out, and the report on it."""

import time
from dataclasses import dataclass, field

from moeengine.engine.answer_text import AnswerText
from moeengine.errors import CancelledError, ContextOverflowError
from moeengine.sampling import Sampler, token_logprob
from moeengine.tokenizer.harmony import Headers


@dataclass(frozen=True)
class Completion:
    """What one request gave.

    text : str               up to the first stop string or end-of-generation token; thoughts that the
                             model says by control tokens stand between <think> and </think>
    tokens : list of int     as drawn: with those of a stop string, without the end token
    finish_reason : str      "stop": end token or stop string; "length": max_tokens, or the context
                             is full; "cancelled"
    stop : str or None       the stop string that was met
    n_prompt, n_reused, n_generated : int
                             tokens; n_reused of the prompt were in the timeline already
    seed : int               gives the same tokens again
    logprobs : list          a TokenLogprob for each of tokens, where they were asked for
    prefill_s, decode_s : float
                             seconds to the first logits, and for all that followed
    """

    text: str
    tokens: list = field(repr=False)
    finish_reason: str
    stop: str | None
    n_prompt: int
    n_reused: int
    n_generated: int
    seed: int
    logprobs: list = field(repr=False)
    prefill_s: float
    decode_s: float


class Generation:
    """The state of one request: the same whether it is read at once or piece by piece.

    prompt : list of int         at least one token
    params : GenerationParams
    tokenizer : Tokenizer
    has_text : bool              False: token ids only, the text stays empty
    call : Call
    n_vocab, n_ctx : of the model and of the session that will do the work
    counters : stats.Counters

    Raises
    ------
    ContextOverflowError         the prompt alone is longer than n_ctx
    """

    def __init__(
        self, prompt, params, *, tokenizer, has_text, call, n_vocab, n_ctx, counters, progress=None
    ):
        if len(prompt) > n_ctx:
            raise ContextOverflowError(
                f"prompt: found {len(prompt)} tokens, expected at most n_ctx, which is {n_ctx}; "
                "shorten it or raise n_ctx"
            )
        room = n_ctx - len(prompt)
        self.n_max = room if params.max_tokens < 0 else min(params.max_tokens, room)
        self.prompt = prompt
        self.params = params
        self.call = call
        self.progress = progress
        self.tokens = []
        self.n_reused = 0
        self.finish_reason = None
        self.timings = {"prefill_s": 0.0, "decode_s": 0.0}
        self._counters = counters
        self._tokenizer = tokenizer
        self._has_text = has_text
        self._end_tokens = () if params.ignore_eos else tokenizer.eog_ids
        self._sampler = Sampler(params.sampling, n_vocab, n_ctx, prompt)
        self._text = AnswerText(params.stop)
        self._headers = Headers()
        self._shown = []
        self._logprobs = []

    @property
    def seed(self):
        """What gives the same draws again."""
        return self._sampler.seed

    def pieces(self, session):
        """Do the work; yields texts, none empty. Whoever asks for the next one holds the turn."""
        try:
            yield from self._decode(session)
        except CancelledError:
            session.check_open()
            self.finish_reason = "cancelled"
        except BaseException:  # Ctrl-C, NaN in the model: what was shown stays
            self.finish_reason = "cancelled"
            raise
        tail = self._text.finish()
        if self._text.stop is not None:
            self.finish_reason = "stop"
        if tail:
            self._shown.append(tail)
            yield tail

    def _decode(self, session):
        logits = self._timed("prefill_s", session.follow, self)
        while self.finish_reason is None:
            if len(self.tokens) >= self.n_max:
                self.finish_reason = "length"
                return
            piece = self._timed("decode_s", self._draw, logits)
            if piece:
                self._shown.append(piece)
                yield piece
            if self.finish_reason is None and len(self.tokens) < self.n_max:
                logits = self._timed("decode_s", session.follow, self)

    def _draw(self, logits):
        """Draw the next token from logits, float32 (V,); returns the text that became certain."""
        token = self._sampler.sample(logits)
        if token in self._end_tokens:
            self.finish_reason = "stop"
            return self._text_of(token, is_shown=False)
        self.tokens.append(token)
        self._counters.n_generated_tokens += 1
        if self.params.logprobs:
            self._logprobs.append(token_logprob(logits, token, self.params.logprobs))
        piece = self._text_of(token)
        if self._text.stop is not None:
            self.finish_reason = "stop"
        return piece

    def _text_of(self, token, *, is_shown=True):
        """The text that becomes certain with `token`; a control token's own text is never shown."""
        tokenizer = self._tokenizer
        if not self._has_text or token >= tokenizer.n_vocab:
            return ""  # a model may have more rows than its vocabulary has tokens
        if is_shown and not tokenizer.is_special(token):
            data = tokenizer.token_bytes(token)
            if not self._headers.is_open:
                return self._text.push(data)
            self._headers.name(data)
            return self._text.push(b"", hidden=data.decode("utf-8", "replace"))
        text = tokenizer.token_text(token)
        return self._text.push(self._headers.control(text).encode(), hidden=text)

    def _timed(self, name, work, *args):
        start = time.perf_counter()
        try:
            return work(*args)
        finally:
            self.timings[name] += time.perf_counter() - start

    def completion(self):
        """The Completion of what was done so far."""
        return Completion(
            text="".join(self._shown),
            tokens=list(self.tokens),
            finish_reason=self.finish_reason or "cancelled",
            stop=self._text.stop,
            n_prompt=len(self.prompt),
            n_reused=self.n_reused,
            n_generated=len(self.tokens),
            seed=self.seed,
            logprobs=list(self._logprobs),
            **self.timings,
        )


class Stream:
    """Iterator over the pieces of an answer; each is valid text, none is empty.

    Work is done in `next` only. Between two pieces other calls may use the timeline: the stream
    brings back what it needs, which costs time and changes nothing. `close` ends the answer.
    """

    def __init__(self, session, generation):
        self._session = session
        self._generation = generation
        self._pieces = generation.pieces(session)

    def __iter__(self):
        return self

    def __next__(self):
        try:
            with self._session.work(self._generation.call, lease=True):
                return next(self._pieces)
        except CancelledError:  # while it waited for its turn: it ends, without doing any work
            self._session.check_open()
            return next(self._pieces)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """End the answer here. Again, or after its end: nothing."""
        self._generation.call.cancel()
        try:
            self._pieces.close()
        except ValueError:
            pass  # another thread is reading; it ends with its next step

    def __repr__(self):
        generation = self._generation
        return f"<Stream of {len(generation.tokens)} tokens, {generation.finish_reason or 'not ended'}>"

    def __reduce__(self):
        raise TypeError("a Stream cannot be pickled or copied: its result can")

    @property
    def result(self):
        """Completion of what was read so far; finish_reason "cancelled" before the end."""
        return self._generation.completion()
