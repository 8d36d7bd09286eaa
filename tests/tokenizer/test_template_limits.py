"""Templates made to use up time or memory: each is ended early, with a typed error."""

import time

import pytest

from moeengine.errors import ConfigError
from moeengine.tokenizer import ChatTemplate, template_limits

DOUBLING = (
    "{% set ns = namespace(x=START) %}{% for i in range(64) %}{% set ns.x = STEP %}{% endfor %}"
)
DEEP = DOUBLING.replace("START", "[1]").replace("STEP", "[ns.x, ns.x]")
BOMBS = {
    "range": "{% for i in range(10**9) %}x{% endfor %}",
    "nested loops": "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "branching recursion": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
    "text * n": "{{ 'a' * 10**9 }}",
    "content * n": "{% set n = 10**9 %}{{ n * messages[0].content }}",
    "list * n": "{{ ([1] * 10**9) | length }}",
    "text + text": DOUBLING.replace("START", "'a'").replace("STEP", "ns.x + ns.x"),
    "text ~ text": DOUBLING.replace("START", "'a'").replace("STEP", "ns.x ~ ns.x"),
    "list + list": DOUBLING.replace("START", "[1]").replace("STEP", "ns.x + ns.x"),
    "set block": DOUBLING.replace("START", "'a'").replace("{% set ns.x = STEP %}", "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}"),
    "nested list": DEEP + "{{ ns.x }}",
    "nested list, unused": DEEP,
    "nested list, json": DEEP + "{{ ns.x | tojson }}",
    "nested tuple as key": DEEP.replace("[", "(").replace("]", ",)") + "{{ {ns.x: 1} }}",
    "nested namespace": "{% set ns = namespace(x=1) %}{% for i in range(64) %}{% set ns.x = namespace(a=ns.x, b=ns.x) %}{% endfor %}{{ ns.x }}",
    "cycle": "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
    "long text often": "{% set x = 'a' * 1000000 %}{{ [x, x, x, x, x, x, x, x, x] }}",
    "output": "{% set x = 'a' * 1000000 %}{% for i in range(99) %}{{ x }}{% endfor %}",
    "power": "{{ 9 ** (9 ** 9) }}",
    "product": DOUBLING.replace("START", "9").replace("STEP", "ns.x * ns.x"),
    "replace": "{{ ('a' * 9999).replace('a', 'b' * 9999) }}",
    "replace filter": "{{ ('a' * 9999) | replace('a', 'b' * 9999) }}",
    "replace nothing": "{{ ('a' * 9999).replace('', 'b' * 9999) }}",
    "join": "{{ ('x' * 9999).join(['a'] * 9999) }}",
    "join filter": "{{ (['a'] * 9999) | join('x' * 9999) }}",
    "center": "{{ 'a'.center(10**9) }}",
    "center filter": "{{ 'a' | center(width=10**9) }}",
    "mapped filter": "{{ ['a'] | map('center', 10**9) | list }}",
    "zfill": "{{ 'a'.zfill(10**9) }}",
    "percent": "{{ '%1000000000d' % 1 }}",
    "percent star": "{{ '%*d' % (10**9, 1) }}",
    "format filter": "{{ '%1000000000d' | format(1) }}",
    "format": "{{ '{:1000000000}'.format(1) }}",
    "nested format": "{{ '{:{}}'.format(1, 10**9) }}",
    "format often": "{% set x = 'a' * 99999 %}{{ ('{0}' * 9999).format(x) }}",
    "percent often": "{% set x = 'a' * 99999 %}{{ ('%(a)s' * 9999) % {'a': x} }}",
    "percent of a namespace": "{% set ns = namespace(x=1) %}{% for i in range(64) %}{% set ns.x = namespace(a=ns.x, b=ns.x) %}{% endfor %}{{ '%s' % ns.x }}",
    "format_map": "{{ '{a:1000000000}'.format_map({'a': 1}) }}",
    "expandtabs": "{{ '\t'.expandtabs(10**9) }}",
    "bytes": "{{ 'a'.encode().ljust(10**9) }}",
    "indent": "{{ 'a\nb' | indent(10**9, true) }}",
    "indent text": "{{ ('a\n' * 9999) | indent('x' * 99999, true) }}",
    "batch": "{{ [1] | batch(10**9, 'x') | list }}",
    "slice": "{{ [1] | slice(10**9) | list }}",
    "wordwrap": "{{ ('a ' * 9999) | wordwrap(1, wrapstring='x' * 99999) }}",
    "wordwrap of one word": "{{ ('-' * 999999) | wordwrap(1) }}",
    "json indent": "{{ [[[1]]] | tojson(indent=10**9) }}",
    "json indent text": "{{ [[[1]]] | tojson(indent='x' * 99999) }}",
    "json separators": "{{ range(9999) | list | tojson(separators=('x' * 99999, ':')) }}",
    "lipsum": "{{ lipsum(n=10**6) }}",
    "sum of lists": "{{ ([[1] * 9999] * 9999) | sum(start=[]) }}",
    "sort often": "{% for i in range(9999) %}{% set x = range(30000) | sort %}{% endfor %}",
}  # fmt: skip


class NoTokenizer:
    special_ids = {}


@pytest.mark.parametrize("source", BOMBS.values(), ids=BOMBS)
def test_a_bomb_is_defused(source, monkeypatch):
    monkeypatch.setattr(template_limits, "MAX_SECONDS", 0.5)
    monkeypatch.setattr(template_limits, "MAX_STEPS", 50_000)
    monkeypatch.setattr(template_limits, "MAX_ITEMS", 20_000)
    start = time.thread_time()
    with pytest.raises(ConfigError, match="chat template") as caught:
        ChatTemplate(source, NoTokenizer()).render([{"role": "user", "content": "x" * 100}])
    assert time.thread_time() - start < 2 and "MemoryError" not in str(caught.value)


def test_long_conversations_stay_inside_the_limits():
    source = "{% for m in messages if messages | length %}{{ '<' ~ m.role ~ '>' ~ m.content | trim }}{% endfor %}"
    messages = [{"role": "user", "content": "word " * 20_000}] * 40
    text = "".join(segment.text for segment in ChatTemplate(source, NoTokenizer()).render(messages))
    assert len(text) == 40 * (99_999 + 6)
    many = [{"role": "user", "content": "x"}] * 5000
    assert len(ChatTemplate(source, NoTokenizer()).render(many)) == 10_000
