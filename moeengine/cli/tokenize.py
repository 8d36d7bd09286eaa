"""`moeengine tokenize`: the token ids of a text; works on files that hold a vocabulary only."""

import sys

from moeengine.cli import options, output


def add_arguments(parser):
    options.add_text_options(parser, "text")
    group = parser.add_argument_group("model")
    options.add_model_path(group)
    group.add_argument(
        "--force-pre", metavar="NAME", help="pre-tokenizer to use (default: what the file names)"
    )
    for flag, text in (
        ("--no-add-special", "no BOS or EOS around the text"),
        ("--parse-special", "text that spells a control token becomes that token"),
        ("--ids", "print the ids alone, on one line"),
        ("--json", "print ids and texts as one JSON object"),
    ):
        parser.add_argument(flag, action="store_true", help=f"{text} (default: off)")


def run(args):
    from moeengine.tokenizer import Tokenizer

    text = options.read_text(args, sys.stdin)
    tokenizer = Tokenizer.from_gguf(options.model_path(args), force_pre=args.force_pre)
    ids = tokenizer.encode(
        text, add_special=not args.no_add_special, parse_special=args.parse_special
    )
    pieces = [tokenizer.token_bytes(i) for i in ids]
    if args.json:
        texts = [piece.decode("utf-8", "backslashreplace") for piece in pieces]
        output.json_line({"tokens": ids, "texts": texts})
    elif args.ids:
        output.write(" ".join(map(str, ids)) + "\n")
    else:
        for i, piece in zip(ids, pieces):
            output.write(f"{i:7d}  {_shown(piece)}\n")
    return 0


def _shown(piece):
    """Bytes of a token in quotes: text as it is, what is no UTF-8 or cannot be seen as escapes."""
    return "'" + "".join(map(_escaped, piece.decode("utf-8", "surrogateescape"))) + "'"


def _escaped(char):
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is no text
        return f"\\x{code - 0xDC00:02x}"
    if char in "\\'":
        return "\\" + char
    return f"\\u{code:04x}" if 0x80 <= code < 0x100 and not char.isprintable() else repr(char)[1:-1]
