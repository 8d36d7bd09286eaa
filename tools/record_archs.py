"""Records stock llama.cpp's logits of the models in tests/arch_models.py, gpt_oss_models.py and hybrid.py:

    python tools/record_archs.py PEER [NAME ...]

PEER is a Python, or a virtual environment, that has llama-cpp-python. One .npz a model goes to tests/graph/archs:
float32 (T, V) `logits`, and the `crc` of the weights they belong to; of models with recurrent layers also `one_by_one`,
logits of the same tokens in chunks of one.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.peers import stock  # noqa: E402
from tests.arch_models import ARCH_MODELS, DENSE_MODELS, LONG_MODELS, prompt, weights_crc, write_arch  # noqa: E402
from tests.arch_parts import CHUNKS, N_TOKENS  # noqa: E402
from tests.gpt_oss_models import GPT_OSS_MODELS, write_gpt_oss  # noqa: E402
from tests.hybrid import HYBRID_MODELS, write_hybrid  # noqa: E402

WRITERS = dict.fromkeys(ARCH_MODELS | DENSE_MODELS | LONG_MODELS, write_arch) | dict.fromkeys(GPT_OSS_MODELS, write_gpt_oss)
WRITERS |= dict.fromkeys(HYBRID_MODELS, write_hybrid)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("peer")
    parser.add_argument("names", nargs="*", default=list(WRITERS))
    args = parser.parse_args()
    folder = ROOT / "tests" / "graph" / "archs"
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary, stock(args.peer).start() as peer:
        for name in args.names:
            tiny = WRITERS[name](Path(temporary) / f"{name}.gguf", name)
            model = (ARCH_MODELS | LONG_MODELS).get(name)
            n_tokens, n_ctx, n_kept = (model.n_tokens, model.n_ctx, model.n_kept) if model else (N_TOKENS, 256, 0)
            peer.do("load", path=str(tiny.path), n_ctx=n_ctx, n_threads=1)
            saved = Path(temporary) / "logits.npy"
            peer.do("logits", tokens=prompt(n_tokens).tolist(), save_to=str(saved), ubatch=CHUNKS)
            found = {"logits": np.load(saved)[-n_kept:]}
            if f"{tiny.arch}.ssm.conv_kernel" in tiny.metadata:
                peer.do("logits", tokens=prompt().tolist(), save_to=str(saved), ubatch=1)
                found["one_by_one"] = np.load(saved)
            np.savez_compressed(folder / f"{name}.npz", **found, crc=weights_crc(tiny))
            print(name)


if __name__ == "__main__":
    main()
