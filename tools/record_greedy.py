"""Records stock llama.cpp's greedy text of the shipped model. Run with a Python that has llama-cpp-python:

python tools/record_greedy.py moeengine/models/tales.gguf tests/models/greedy.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import llama_cpp
import numpy as np

PROMPTS = [
    "Once upon a time",
    "<|im_start|>user\nTell me a tale about Mira and the sea.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWhat is three plus four?<|im_end|>\n<|im_start|>assistant\n",
]
N_TOKENS = 96


def greedy(llm: llama_cpp.Llama, prompt: str) -> dict:
    """Ids one by one, each the arg-max; `margins`: how far the best logit is above the second."""
    prompt_ids = llm.tokenize(prompt.encode(), add_bos=False, special=True)
    llm.reset()
    llm.eval(prompt_ids)
    ids, margins = [], []
    for _ in range(N_TOKENS):
        logits = np.array(llm.scores[llm.n_tokens - 1])
        best, second = np.argsort(logits)[::-1][:2]
        if llama_cpp.llama_vocab_is_eog(llm._model.vocab, int(best)):
            break
        ids.append(int(best))
        margins.append(round(float(logits[best] - logits[second]), 3))
        llm.eval([int(best)])
    text = llm.detokenize(ids, special=True).decode()
    return {"prompt": prompt, "prompt_ids": prompt_ids, "ids": ids, "text": text, "least_margin": min(margins)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    llm = llama_cpp.Llama(args.model, n_ctx=512, n_threads=1, logits_all=True, verbose=False)
    cases = [greedy(llm, prompt) for prompt in PROMPTS]
    note = f"greedy text of llama-cpp-python {llama_cpp.__version__}, one thread"
    args.out.write_text(json.dumps({"source": note, "cases": cases}, indent=1) + "\n")
