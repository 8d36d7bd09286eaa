"""`moeengine generate`: continue a prompt; the text goes to stdout as it comes."""

import sys
from dataclasses import asdict

from moeengine.cli import options, output


def add_arguments(parser):
    options.add_text_options(parser, "prompt")
    parser.add_argument(
        "--no-special",
        action="store_true",
        help="no BOS before the prompt, and control tokens in it are plain text (default: off)",
    )
    options.add_model_options(parser)
    options.add_sampling_options(parser)
    options.add_machine_options(parser)
    options.add_supply_options(parser)
    options.add_lossy_options(parser)
    group = output.add_output_options(parser, what="the answer and all about it")
    group.add_argument(
        "--stats",
        action="store_true",
        help="tell on standard error where the time went and what was read (default: off)",
    )
    group.add_argument(
        "--logprobs",
        type=int,
        metavar="N",
        help="with --json: log-probabilities of every token and its N best rivals (default: none)",
    )


def run(args):
    from moeengine.engine import Engine

    if args.logprobs is not None and not args.json:
        args.parser.error("argument --logprobs: expected --json with it")
    prompt = options.read_text(args, sys.stdin)
    settings = options.generation_settings(args)
    if args.no_special:
        settings |= {"add_special": False, "parse_special": False}
    progress = output.Progress()
    with output.logging_to_stderr(args.verbose, args.moe_stats):
        progress.show("loading the model")
        with Engine(options.model_path(args), **options.engine_settings(args)) as engine:
            progress.clear()
            try:
                answer = _answer(engine, prompt, settings, args.json, progress)
            finally:
                progress.clear()
            if args.stats:
                output.note(output.json_text(engine.stats()) if args.json else output.supply_summary(engine.stats()))
    if args.verbose or sys.stderr.isatty():
        output.note(output.summary(answer))
    return 0


def _answer(engine, prompt, settings, as_json, progress):
    """Generate and print; returns the Completion."""
    if as_json:
        answer = engine.complete(prompt, progress=progress.tokens, **settings)
        output.json_line(asdict(answer))
        return answer
    stream = engine.generate(prompt, stream=True, progress=progress.tokens, **settings)
    try:
        for piece in stream:
            output.write(piece)
    except KeyboardInterrupt:
        output.write("\n")
        raise
    output.write("\n")
    return stream.result
