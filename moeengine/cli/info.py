"""`moeengine info`: what a model file holds, what it needs, and whether its numbers are sound."""

from dataclasses import asdict

from moeengine.cli import output
from moeengine.cli.output import shown_bytes, shown_count

N_ARRAY_SHOWN = 4


def add_arguments(parser):
    parser.add_argument(
        "model", metavar="FILE", help="GGUF file, any shard of a set, or its folder"
    )
    parser.add_argument("-c", "--ctx", "--n-ctx", dest="n_ctx", type=int, metavar="N",
                        help="tokens of context to count memory for (default: as generate chooses)")  # fmt: skip
    parser.add_argument("--check", action="store_true",
                        help="read all weights and look for NaN and infinity; exit 1 if there are any "
                             "(default: off)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="as one JSON object (default: off)")


def run(args):
    from moeengine.config import EngineConfig
    from moeengine.loader.model_file import ModelFile
    from moeengine.model_info import describe, find_bad_blocks

    EngineConfig(n_ctx=args.n_ctx)  # refuses what is out of range
    progress = output.Progress()
    with ModelFile.open(args.model) as model_file:
        info = describe(model_file, args.n_ctx)
        bad = None
        if args.check:
            bad = list(find_bad_blocks(model_file, lambda n, total: progress.show(
                f"checking: {shown_bytes(n)} of {shown_bytes(total)}")))  # fmt: skip
            progress.clear()
        if args.json:
            _print_json(model_file, info, bad)
        else:
            _print_text(model_file, info, bad)
    return 1 if bad else 0


def _print_json(model_file, info, bad):
    report = asdict(info)
    report["metadata"] = {k: _plain(v) for k, v in model_file.metadata.items()}
    if bad is not None:
        report["bad"] = [
            {"tensor": name, "expert": ie, "n_bad_blocks": n, "n_blocks": of}
            for name, ie, n, of in bad
        ]
    output.json_line(report)


def _print_text(model_file, info, bad):
    from moeengine.loader.messages import escaped

    lines = [f"architecture   {escaped(info.arch)}", f"name           {escaped(info.name)}"]
    lines += [
        f"file           {shown_bytes(info.file_bytes)} in {info.n_shards} file(s), "
        f"{info.n_tensors} tensors, {shown_count(info.n_weights)} weights",
        "",
        "quant types          tensors    weights        size  bits/weight",
    ]
    for q in info.quants:
        lines.append(
            f"  {q.qtype:8s} {'experts' if q.is_expert else 'other':8s} {q.n_tensors:8d} {shown_count(q.n_weights):>10s} "
            f"{shown_bytes(q.n_bytes):>11s} {8 * q.n_bytes / max(q.n_weights, 1):12.2f}"
        )
    lines += ["", *_expert_lines(info), *_memory_lines(info), "", "metadata"]
    lines += [f"  {escaped(key)} = {_shown(value)}" for key, value in model_file.metadata.items()]
    if bad is not None:
        lines += ["", *_check_lines(bad)]
    output.write("\n".join(lines) + "\n")


def _expert_lines(info):
    e = info.experts
    if e is None:
        return ["experts        none"]
    size = shown_bytes(e.expert_bytes_min)
    if e.expert_bytes_max != e.expert_bytes_min:
        size += f" to {shown_bytes(e.expert_bytes_max)}"
    return [
        f"experts        {e.n_expert} in each of {e.n_layer} layers, {e.n_expert_used} used for a token",
        f"an expert      {size} (gate, up and down)",
        f"all experts    {shown_bytes(e.total_bytes)}; one token reads {shown_bytes(e.token_bytes)} of them",
    ]


def _memory_lines(info):
    return [
        f"other weights  {shown_bytes(info.dense_bytes)}, read for every token",
        f"a token        {shown_bytes(info.token_bytes)} read",
        f"KV cache       {shown_bytes(info.kv_bytes)} for {info.n_ctx} tokens (trained for {info.n_ctx_train})",
        f"memory         at least {shown_bytes(info.smallest_budget)}, useful from {shown_bytes(info.useful_budget)}, "
        f"all in memory {shown_bytes(info.file_bytes + info.kv_bytes)}; working memory comes on top",
    ]


def _check_lines(bad):
    from moeengine.loader.messages import escaped

    if not bad:
        return ["check          every weight is a finite number"]
    return [
        f"check          {escaped(name)}{'' if ie is None else f', expert {ie}'}: {n} of {of} blocks hold NaN or infinity"
        for name, ie, n, of in bad
    ]


def _plain(value):
    """A metadata value for JSON; long arrays by their length."""
    if isinstance(value, (str, int, float, bool)):
        return value
    return value.tolist() if len(value) <= 256 else {"n": len(value)}


def _shown(value):
    """A metadata value on one line, nothing in it that a terminal would act upon."""
    from moeengine.loader.messages import escaped

    if isinstance(value, (str, int, float, bool)):
        return escaped(value)
    first = ", ".join(escaped(v) for v in value[:N_ARRAY_SHOWN])
    return f"[{first}{', ...' if len(value) > N_ARRAY_SHOWN else ''}] ({len(value)} values)"
