"""`moeengine info`: what a model file holds, what it needs, and whether its numbers are sound."""

from dataclasses import asdict

from moeengine.cli import output
from moeengine.cli.output import shown_count
from moeengine.stats import shown_bytes

N_ARRAY_SHOWN = 4


def add_arguments(parser):
    parser.add_argument(
        "model", metavar="FILE", help="GGUF file, any shard of a set, or its folder"
    )
    parser.add_argument(
        "-c",
        "--ctx",
        "--n-ctx",
        dest="n_ctx",
        type=int,
        metavar="N",
        help="tokens of context to count memory for (default: as generate chooses)",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="read all weights, look for NaN and infinity; exit 1 if there are any (default: off)",
    )
    parser.add_argument("--json", action="store_true", help="as one JSON object (default: off)")


def run(args):
    from moeengine.config import EngineConfig
    from moeengine.loader.model_file import ModelFile
    from moeengine.loader.model_info import describe

    EngineConfig(n_ctx=args.n_ctx)  # refuses what is out of range
    with ModelFile.open(args.model) as model_file:
        info = describe(model_file, args.n_ctx, _kv_bytes(model_file))
        bad = _check(model_file) if args.check else None
        report = _json_report if args.json else _text_report
        report(model_file, info, bad)
    return 1 if bad else 0


def _kv_bytes(model_file):
    """Bytes that a context of n tokens takes, a function; None where the model cannot be built: info tells of it all the same."""
    from moeengine.config import N_UBATCH_DEFAULT
    from moeengine.errors import MoeEngineError
    from moeengine.graph import load_model

    try:
        model = load_model(model_file)
    except MoeEngineError:
        return None
    return lambda n_ctx: model.kv_bytes(n_ctx, N_UBATCH_DEFAULT)


def _check(model_file):
    from moeengine.loader.model_info import find_bad_blocks

    progress = output.Progress()

    def show(n_done, n_total):
        progress.show(f"checking: {shown_bytes(n_done)} of {shown_bytes(n_total)}")

    try:
        return list(find_bad_blocks(model_file, show))
    finally:
        progress.clear()


def _json_report(model_file, info, bad):
    report = asdict(info)
    report["metadata"] = {k: _plain(v) for k, v in model_file.metadata.items()}
    if bad is not None:
        report["bad"] = [
            {"tensor": name, "expert": ie, "n_bad_blocks": n, "n_blocks": of}
            for name, ie, n, of in bad
        ]
    output.json_line(report)


def _text_report(model_file, info, bad):
    from moeengine.graph import available
    from moeengine.loader.messages import escaped

    lines = [
        _row("architecture", escaped(info.arch) + ("" if info.arch in available() else ", which is not supported")),
        _row("name", escaped(info.name)),
        _row(
            "file",
            f"{shown_bytes(info.file_bytes)} in {info.n_shards} file(s), "
            f"{info.n_tensors} tensors, {shown_count(info.n_weights)} weights",
        ),
        "",
        *_quant_table(info.quants),
        "",
        *_expert_rows(info.experts),
        *_memory_rows(info),
        "",
        "metadata",
    ]
    lines += [f"  {escaped(key)} = {_shown(value)}" for key, value in model_file.metadata.items()]
    if bad is not None:
        lines += ["", *_check_rows(bad)]
    output.write("\n".join(lines) + "\n")


def _row(label, text):
    return f"{label:14s} {text}".rstrip()


def _quant_table(quants):
    yield f"{'quant types':18s}{'tensors':>8s}{'weights':>10s}{'size':>10s}{'bits/weight':>13s}"
    for q in quants:
        kind = "experts" if q.is_expert else "other"
        weights, size = shown_count(q.n_weights), shown_bytes(q.n_bytes)
        bits = 8 * q.n_bytes / max(q.n_weights, 1)
        yield f"  {q.qtype:8s}{kind:8s}{q.n_tensors:8d}{weights:>10s}{size:>10s}{bits:13.2f}"


def _expert_rows(e):
    if e is None:
        return [_row("experts", "none")]
    size = shown_bytes(e.expert_bytes_min)
    if e.expert_bytes_max != e.expert_bytes_min:
        size += f" to {shown_bytes(e.expert_bytes_max)}"
    all_experts = (
        f"{shown_bytes(e.total_bytes)}; a token reads {shown_bytes(e.token_bytes)} of them"
    )
    return [
        _row(
            "experts",
            f"{e.n_expert} in {e.n_layer} layers each, {e.n_expert_used} used for a token",
        ),
        _row("an expert", f"{size} ({'gate, up' if e.has_gate else 'up'} and down)"),
        _row("all experts", all_experts),
    ]


def _memory_rows(info):
    everything = shown_bytes(info.file_bytes + info.kv_bytes)
    return [
        _row("other weights", f"{shown_bytes(info.dense_bytes)}, read for every token"),
        _row("a token", f"{shown_bytes(info.token_bytes)} read"),
        _row(
            "KV cache",
            f"{shown_bytes(info.kv_bytes)} for {info.n_ctx} tokens; "
            f"the model was trained for {info.n_ctx_train}",
        ),
        _row(
            "memory",
            f"at least {shown_bytes(info.smallest_budget)}, useful from "
            f"{shown_bytes(info.useful_budget)}, everything {everything}; working memory on top",
        ),
    ]


def _check_rows(bad):
    from moeengine.loader.messages import escaped

    if not bad:
        return [_row("check", "every weight is a finite number")]
    rows = []
    for name, ie, n_bad, n_blocks in bad:
        where = escaped(name) if ie is None else f"{escaped(name)}, expert {ie}"
        rows.append(_row("check", f"{where}: {n_bad} of {n_blocks} blocks hold NaN or infinity"))
    return rows


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
