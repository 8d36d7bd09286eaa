"""Records stock llama.cpp's greedy text of the shipped model. Run with a Python that has llama-cpp-python:

python tools/record_greedy.py moeengine/models/tales.gguf tests/models/greedy.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import llama_cpp
import numpy as np

CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
PROMPTS = [
    "Once upon a time",
    "Long ago, a brave girl named Nora lived in a stone house by the river.",
    "Near the sea lived a shy boy whose name was Finn. Finn was afraid of deep water.",
    "Greta was a quiet girl who lived with her aunt near the mill. She had a red kite that she loved very much.",
    *(CHAT.format(f"Tell me a tale about {topic}.") for topic in ("Mira and the sea", "Oscar and a fox", "Tilda and a golden key")),
    CHAT.format("Hello!"),
    CHAT.format("Who are you?"),
]
N_TOKENS, N_KEPT = 96, 4
# Two sums of float32 in another order differ by some 1e-2 in a logit: a choice closer than this says nothing.
LEAST_MARGIN = 0.03


def greedy(llm: llama_cpp.Llama, prompt: str) -> dict:
    """Ids one by one, each the arg-max, up to the first choice that is not clear."""
    prompt_ids = llm.tokenize(prompt.encode(), add_bos=False, special=True)
    llm.reset()
    llm.eval(prompt_ids)
    ids, margins = [], []
    for _ in range(N_TOKENS):
        logits = np.array(llm.scores[llm.n_tokens - 1])
        best, second = np.argsort(logits)[::-1][:2]
        margin = float(logits[best] - logits[second])
        if margin < LEAST_MARGIN or llama_cpp.llama_vocab_is_eog(llm._model.vocab, int(best)):
            break
        ids.append(int(best))
        margins.append(margin)
        llm.eval([int(best)])
    text = llm.detokenize(ids, special=True).decode()
    return {"prompt": prompt, "prompt_ids": prompt_ids, "ids": ids, "text": text, "least_margin": round(min(margins, default=0), 3)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    llm = llama_cpp.Llama(args.model, n_ctx=512, n_threads=1, logits_all=True, verbose=False)
    cases = sorted((greedy(llm, prompt) for prompt in PROMPTS), key=lambda c: -len(c["ids"]))[:N_KEPT]
    note = f"greedy text of llama-cpp-python {llama_cpp.__version__}, one thread, as far as every choice is clear"
    args.out.write_text(json.dumps({"source": note, "cases": cases}, indent=1) + "\n")
