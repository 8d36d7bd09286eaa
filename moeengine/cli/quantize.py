"""`moeengine quantize FILE OUT --type TYPE`: write a model again in another quant type."""

import sys

from moeengine.cli.options import add_rewrite_output
from moeengine.errors import ConfigError


def add_arguments(parser):
    parser.add_argument("model", metavar="FILE", help="GGUF model, any shard of a set, or its folder")
    parser.add_argument("out", metavar="OUT", help="file to write")
    rounding = parser.add_argument_group("rounding")
    rounding.add_argument(
        "--type", required=True, metavar="TYPE", help="what matrices become, e.g. q4_k, q8_0, iq2_xxs, f16"
    )
    rounding.add_argument(
        "--imatrix", metavar="FILE", help="importance matrix: which columns matter (default: all alike)"
    )
    rounding.add_argument(
        "--tensor-type", action="append", default=[], metavar="PATTERN=TYPE",
        help="another type for tensors whose name matches a regular expression; may be given more than once (default: none)",
    )  # fmt: skip
    rounding.add_argument(
        "--pure", action="store_true", help="embedding and head too (default: those stay at q6_k or better)"
    )
    add_rewrite_output(parser)


def run(args):
    from moeengine.loader.messages import escaped
    from moeengine.quantize.imatrix import read_imatrix
    from moeengine.quantize.rewrite import rewrite

    def progress(tensor, done, total):
        if not args.quiet:
            types = tensor.qtype.name if tensor.is_copied else f"{tensor.info.qtype.name} -> {tensor.qtype.name}"
            print(f"[{100 * done // total:3d}%] {escaped(tensor.info.name)}: {types}", file=sys.stderr)

    planned = rewrite(
        args.model, args.out, args.type,
        imatrix=read_imatrix(args.imatrix) if args.imatrix else None,
        overrides=[_override(text) for text in args.tensor_type],
        pure=args.pure, force=args.force, progress=progress,
    )  # fmt: skip
    before, after = sum(p.info.n_bytes for p in planned), sum(p.n_bytes for p in planned)
    print(f"{args.out}: {after / 1e6:.1f} MB of tensors, before {before / 1e6:.1f} MB", file=sys.stderr)
    return 0


def _override(text):
    pattern, found, qtype = text.rpartition("=")
    if not found or not pattern:
        raise ConfigError(f"--tensor-type {text}: expected PATTERN=TYPE, e.g. ffn_down_exps=q4_k")
    return pattern, qtype
