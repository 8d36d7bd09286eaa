"""What every kind of timeline must be able to do."""

import numpy as np


def check_rewind_and_load(engine, tokens, n, want, path):
    """A session of the first 150 tokens, and one that loads it from a file at `path`, cut back to n of them, end with the logits
    `want`, float32 (V,), after all."""
    session, other = engine.session(), engine.session()
    session.eval(tokens[:150])
    session.save(path)
    other.load(path)
    for s in (session, other):
        s.rewind(n)
        assert np.array_equal(s.eval(tokens[n:]), want)
