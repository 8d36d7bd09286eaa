"""`moeengine retier FILE OUT --tiers ...`: spread experts over banks of different quant types."""

import sys

from moeengine.cli.options import add_rewrite_output
from moeengine.errors import ConfigError
from moeengine.loader.whole_file import read_file


def add_arguments(parser):
    parser.add_argument("model", metavar="FILE", help="GGUF model, any shard of a set, or its folder")
    parser.add_argument("out", metavar="OUT", help="file to write")
    tiers = parser.add_argument_group("tiers")
    tiers.add_argument(
        "--tiers", required=True, metavar="N=TYPE,...",
        help="experts of each layer and what they become, up to four, finest first, such as 16=q8_0,48=q4_k,rest=iq2_xxs; "
        "the type `keep` leaves them as they are",
    )  # fmt: skip
    tiers.add_argument(
        "--by", metavar="FILE",
        help="file of `trace --save`: the most used experts fill the tiers in order (default: ascending ids)",
    )  # fmt: skip
    tiers.add_argument(
        "--list", metavar="FILE",
        help="text with LAYER EXPERT a line, most wanted first, instead of --by (default: none)",
    )  # fmt: skip
    tiers.add_argument(
        "--imatrix", metavar="FILE", help="importance matrix: which columns matter (default: all alike)"
    )
    add_rewrite_output(parser)


def run(args):
    from moeengine.quantize.imatrix import read_imatrix
    from moeengine.quantize.retier import parse_tiers, retier
    from moeengine.supply.recorded import experts_by_use

    def progress(part, done, total):
        if not args.quiet and part.experts is not None:
            types = part.qtype.name if part.is_copied else f"{part.info.qtype.name} -> {part.qtype.name}"
            print(f"[{100 * done // total:3d}%] {part.name}: {len(part.experts)} experts, {types}", file=sys.stderr)

    if args.by and args.list:
        args.parser.error("argument --list: not allowed with --by")
    experts = experts_by_use(args.by, "argument --by") if args.by else _listed(args.list) if args.list else []
    parts = retier(
        args.model, args.out, parse_tiers(args.tiers), experts,
        imatrix=read_imatrix(args.imatrix) if args.imatrix else None, force=args.force, progress=progress,
    )  # fmt: skip
    before = sum({p.info.name: p.info.n_bytes for p in parts}.values())
    print(f"{args.out}: {sum(p.n_bytes for p in parts) / 1e6:.1f} MB of tensors, before {before / 1e6:.1f} MB",
          file=sys.stderr)  # fmt: skip
    return 0


def _listed(path):
    """list of (il, ie) of a text file. ConfigError names the line that is none."""
    try:
        lines = read_file(path).decode().splitlines()
    except UnicodeDecodeError:
        raise ConfigError(f"--list: {path}: expected text") from None
    rows = []
    for i, line in enumerate(lines, 1):
        words = line.split()
        if not words:
            continue
        if len(words) != 2 or not all(w.isdecimal() for w in words):
            raise ConfigError(f"--list: {path}: line {i}: found {line!r}, expected LAYER EXPERT")
        rows.append((int(words[0]), int(words[1])))
    return rows
