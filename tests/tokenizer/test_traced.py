"""Traced strings: the text is always that of `str`, and what is trusted was always trusted before."""

import random
from itertools import pairwise

import pytest

from moeengine.tokenizer.traced import Traced, brace_formatted, joined, literal, trusted_spans

OPERATIONS = (
    lambda a, b, n: a + b, lambda a, b, n: b + a, lambda a, b, n: a * (n % 3), lambda a, b, n: a[n:], lambda a, b, n: a[:-n],
    lambda a, b, n: a[n : n + 3], lambda a, b, n: a[::-1], lambda a, b, n: a[::2], lambda a, b, n: a.strip(),
    lambda a, b, n: a.lstrip("<u"), lambda a, b, n: a.rstrip("U >"), lambda a, b, n: a.upper(), lambda a, b, n: a.title(),
    lambda a, b, n: a.replace("U", b), lambda a, b, n: a.replace("T", "x", 1), lambda a, b, n: a.replace("", "-"),
    lambda a, b, n: a.split()[n % 2] if len(a.split()) > 1 else a, lambda a, b, n: b.join(a.split("U")),
    lambda a, b, n: a.rsplit(" ", 1)[-1], lambda a, b, n: a.partition(" ")[2], lambda a, b, n: a.rpartition("T")[0],
    lambda a, b, n: "".join(a.splitlines()), lambda a, b, n: (a.splitlines(True) or [a])[0], lambda a, b, n: a.removeprefix("TT"),
    lambda a, b, n: a.removesuffix("U"), lambda a, b, n: a.center(9), lambda a, b, n: a.zfill(7), lambda a, b, n: a.swapcase(),
    lambda a, b, n: a.replace("%", "") % () if "%" not in b else a,
)  # fmt: skip


def trusted_text(text):
    return "".join(text[a:b] for a, b in trusted_spans(text))


def test_any_chain_of_operations_keeps_users_text_untrusted():
    """T and < > stand for template text, U for users': neither an operation nor a chain may mix them up."""
    rng = random.Random(1)
    kept = 0
    for _ in range(3000):
        traced = joined("", rng.choices([literal("<T> "), literal("TT\n"), "U \n", "UU"], k=4))
        plain = str.__str__(traced)
        for _ in range(rng.randint(1, 5)):
            operation, n = rng.choice(OPERATIONS), rng.randint(0, 5)
            if rng.random() < 0.5:
                traced, plain = operation(traced, literal("<T>"), n), operation(plain, "<T>", n)
            else:
                traced, plain = operation(traced, "U u", n), operation(plain, "U u", n)
            assert traced == plain
        spans = trusted_spans(traced)
        assert all(0 <= a < b <= len(plain) for a, b in spans)
        assert all(b < c for (_, b), (c, _) in pairwise(spans))
        assert not set(trusted_text(traced).upper()) & {"U"}
        kept += bool(spans)
    assert kept > 1000


def test_what_is_kept():
    text = literal("<s>") + "user" + literal("</s>\n")
    assert trusted_spans(text) == ((0, 3), (7, 12))
    assert trusted_spans(text.strip()) == ((0, 3), (7, 11))
    assert trusted_spans("a" + text) == ((1, 4), (8, 13))
    assert trusted_spans(text[1:9]) == ((0, 2), (6, 8))
    assert trusted_spans(text.split("user")[1]) == ((0, 5),)
    assert trusted_spans(text.replace("user", literal("x"))) == ((0, 9),)
    assert trusted_spans(literal(", ").join(["a", "b"])) == ((1, 3),)
    assert trusted_spans(literal("<") + literal("s>")) == ((0, 3),)
    assert trusted_spans(literal("<s>") * 2) == ((0, 6),)
    assert isinstance(str(text), Traced)


def test_formatting():
    from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter

    assert trusted_spans(literal("<%s> 100%%") % "U") == ((0, 1), (2, 8))
    assert literal("%d-%5.1f") % (1, 2.5) == "1-  2.5" and trusted_spans(literal("%d") % 1) == ()
    formatter = SandboxedFormatter(ImmutableSandboxedEnvironment())
    text = brace_formatted(
        formatter, literal("<{}|{a[x]}|{1:>3}{{}}>"), ("U", 7), {"a": {"x": literal("T")}}
    )
    assert text == "<U|T|  7{}>" and trusted_spans(text) == ((0, 1), (2, 5), (8, 11))
    assert trusted_spans(brace_formatted(formatter, "plain {}", (literal("T"),), {})) == ((6, 7),)


@pytest.mark.parametrize(
    "wrong",
    [lambda t: t + 1, lambda t: t * "a", lambda t: t["x"], lambda t: t[99], lambda t: t.join([1])],
)
def test_wrong_operands_fail_as_for_str(wrong):
    with pytest.raises((TypeError, IndexError)) as ours:
        wrong(literal("abc"))
    with pytest.raises(ours.type):
        wrong("abc")
