"""Draws the next token from one row of logits. NumPy only; knows nothing of models or text.

Order of the steps, as in llama.cpp's default chain (common/sampling.cpp): bias, penalties, top-k,
top-p, min-p, temperature, draw. Greedy (temperature 0) is the best token after bias and penalties.
"""

import math
import secrets
from collections import Counter, deque
from dataclasses import dataclass

import numpy as np

from moeengine.errors import ConfigError, NumericError

N_SORT_FIRST = 1024  # candidates sorted at first in top-p; 16 times as many each time too few
BLOCK = 256  # logits whose maximum is taken together in the search for the best


@dataclass(frozen=True)
class TokenLogprob:
    """Natural logarithm of a drawn token's probability, and the best alternatives, best first.

    Taken from the model's own logits, before any bias, penalty, cut or temperature.
    """

    token: int
    logprob: float
    top: tuple = ()  # (token, logprob) pairs


class Sampler:
    """The sampler of one generation: parameters, random stream, and the recent tokens.

    params : SamplingParams
    n_vocab : int
    n_ctx : int              window of the penalties where repeat_last_n is -1
    history : list of int    the prompt, so that it counts however it was computed

    Raises
    ------
    ConfigError              logit_bias names a token outside the vocabulary
    """

    def __init__(self, params, n_vocab, n_ctx, history=()):
        self.params = params
        self.seed = secrets.randbits(32) if params.seed is None else params.seed
        self._raw = np.random.Philox(key=self.seed)
        if params.logit_bias and max(params.logit_bias) >= n_vocab:
            raise ConfigError(
                f"logit_bias: found token {max(params.logit_bias)}, expected below {n_vocab}"
            )
        self._bias_ids = np.fromiter(params.logit_bias.keys(), np.int64)
        self._bias = np.fromiter(params.logit_bias.values(), np.float32)
        window = n_ctx if params.repeat_last_n < 0 else params.repeat_last_n
        neutral = params.repeat_penalty == 1 and not (
            params.frequency_penalty or params.presence_penalty
        )
        self._recent = deque(maxlen=0 if neutral else window)
        self._counts = Counter()
        for token in history[-self._recent.maxlen :] if self._recent.maxlen else ():
            self.accept(token)

    def accept(self, token):
        """Count `token` among the recent ones."""
        recent = self._recent
        if recent.maxlen == 0:
            return
        if len(recent) == recent.maxlen:
            oldest = recent[0]
            self._counts[oldest] -= 1
            if not self._counts[oldest]:
                del self._counts[oldest]
        recent.append(token)
        self._counts[token] += 1

    def sample(self, logits):
        """Draw a token and count it.

        Parameters
        ----------
        logits : float32 (V,)        not changed

        Returns
        -------
        token : int

        Raises
        ------
        NumericError                 NaN or +inf among the logits, or every one -inf
        """
        check_logits(logits)
        logits = self._adjusted(logits)
        if self.params.temperature == 0:
            token = int(np.argmax(logits))
        else:
            token = self._draw(*candidates(logits, self.params))
        self.accept(token)
        return token

    def _adjusted(self, logits):
        """The logits with bias and penalties; the same array where there is nothing to do."""
        if not len(self._bias_ids) and not self._counts:
            return logits
        logits = logits.copy()
        logits[self._bias_ids] += self._bias
        if self._counts:
            p = self.params
            ids = np.fromiter(self._counts.keys(), np.int64, len(self._counts))
            counts = np.fromiter(self._counts.values(), np.float32, len(self._counts))
            x = logits[ids]
            x = np.where(x <= 0, x * np.float32(p.repeat_penalty), x / np.float32(p.repeat_penalty))
            shift = counts * np.float32(p.frequency_penalty) + np.float32(p.presence_penalty)
            logits[ids] = x - shift
        check_logits(logits)
        return logits

    def _draw(self, ids, logits):
        """One of `ids` by softmax(logits / temperature). logits: float32, as long as ids."""
        x = logits.astype(np.float64)
        with np.errstate(over="ignore"):  # a tiny temperature leaves the best alone
            weights = np.exp((x - x.max()) / self.params.temperature)
        sums = np.cumsum(weights)
        u = (self._raw.random_raw() >> 11) * 2.0**-53  # [0, 1): the raw stream never changes
        i = int(np.searchsorted(sums, u * sums[-1], side="right"))
        if i == len(sums):  # u * sum was rounded up to the sum
            i = int(np.flatnonzero(weights)[-1])
        return int(ids[i])


def check_logits(logits):
    """NumericError unless `logits`, float32 (V,), can be drawn from."""
    best = logits.max()
    if best == -math.inf:
        raise NumericError("logits: found -inf for every token, expected one that is allowed")
    if not best < math.inf:
        what = "NaN" if np.isnan(best) else "+inf"
        where = int(np.argmax(np.isnan(logits) if what == "NaN" else logits))
        raise NumericError(f"logits: found {what} for token {where}, expected finite numbers")


def candidates(logits, params):
    """What top-k, top-p and min-p leave.

    Parameters
    ----------
    logits : float32 (V,)        checked by check_logits
    params : SamplingParams

    Returns
    -------
    ids : int64 (n,)             1 <= n; best first, ties to the lower id, where anything was sorted
    logits : float32 (n,)

    Top-p counts the probabilities of what top-k left; min-p compares with the best. Both keep the
    head of the same order, so min-p may go first and spare the sort.
    """
    n = len(logits)
    is_sorted = 0 < params.top_k < n
    ids = best(logits, params.top_k) if is_sorted else np.arange(n)
    x = logits[ids] if is_sorted else logits
    top = x[0] if is_sorted else x.max()
    weights = np.exp(x - top)
    total = weights.sum(dtype=np.float64)
    if params.min_p > 0:
        keep = np.flatnonzero(x >= top + np.float32(math.log(params.min_p)))
        ids, x, weights = ids[keep], x[keep], weights[keep]
    if params.top_p < 1:
        order = _nucleus(x, weights, params.top_p * total, is_sorted)
        ids, x = ids[order], x[order]
    return ids, x


def _nucleus(x, weights, enough, is_sorted):
    """Positions of the fewest best whose weights sum to `enough`; at least one. x: float32 (n,)."""
    n = len(x) if is_sorted else min(N_SORT_FIRST, len(x))
    while True:
        order = np.arange(len(x)) if is_sorted else best(x, n)
        sums = np.cumsum(weights[order], dtype=np.float64)
        if sums[-1] >= enough or n == len(x):
            return order[: int(np.searchsorted(sums, enough)) + 1]
        n = min(16 * n, len(x))


def best(x, n):
    """Positions of the n largest of x, float32 (m,): descending, ties to the lower position."""
    if n >= len(x):
        return np.argsort(-x, kind="stable")
    n_blocks = len(x) // BLOCK
    if n <= n_blocks // 2:
        # n blocks reach the n-th best maximum, so the n-th best value does too
        maxima = x[: n_blocks * BLOCK].reshape(n_blocks, BLOCK).max(axis=1)
        least = np.partition(maxima, n_blocks - n)[n_blocks - n]
    else:
        least = np.partition(x, len(x) - n)[len(x) - n]
    among = np.flatnonzero(x >= least)
    return among[np.argsort(-x[among], kind="stable")[:n]]


def token_logprob(logits, token, n_top):
    """TokenLogprob of `token` with the `n_top` best. logits: float32 (V,); computed in float64."""
    x = logits.astype(np.float64)
    x -= x.max()
    x -= math.log(np.exp(x).sum())
    top = tuple((int(i), float(x[i])) for i in best(logits, n_top)) if n_top else ()
    return TokenLogprob(token, float(x[token]), top)
