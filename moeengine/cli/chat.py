"""`moeengine chat`: a conversation on a terminal, or one message a line from a pipe."""

import sys
from dataclasses import asdict

from moeengine.cli import options, output
from moeengine.errors import ContextOverflowError

HELP = "/clear begins anew, /help shows this, /exit or Ctrl-D ends, Ctrl-C stops an answer"


def add_arguments(parser):
    parser.add_argument(
        "--system", type=options.text_argument, metavar="TEXT", help="instructions before the conversation (default: none)"
    )
    options.add_model_options(parser)
    options.add_sampling_options(parser, max_tokens=-1)
    options.add_machine_options(parser)
    options.add_supply_options(parser)
    options.add_lossy_options(parser)
    output.add_output_options(parser, what="each answer and all about it")


def run(args):
    from moeengine.engine import Engine

    settings = {"max_tokens": -1} | options.generation_settings(args)
    is_terminal = sys.stdin.isatty()
    progress = output.Progress()
    with output.logging_to_stderr(args.verbose, args.moe_stats):
        progress.show("loading the model")
        with Engine(options.model_path(args), **options.engine_settings(args)) as engine:
            progress.clear()
            engine.tokenizer.require_text()
            conversation = Conversation(engine, args.system, settings, args.json, progress)
            if is_terminal:
                output.note(HELP)
            for line in _lines(is_terminal):
                if line in ("/exit", "/quit"):
                    break
                _one_turn(conversation, line, is_terminal, args.verbose)
    return 0


def _lines(is_terminal):
    """Lines of the user, without their ends; editing and history on a terminal."""
    if not is_terminal:
        for i, line in enumerate(sys.stdin.buffer, 1):
            yield options.utf8(line, f"standard input, line {i}").rstrip("\r\n")
        return
    try:
        import readline  # noqa: F401  input() uses it once it is imported
    except ImportError:
        pass
    while True:
        try:
            yield input("> ")
        except EOFError:
            output.note("")
            return
        except KeyboardInterrupt:
            output.note("")  # or the shell's prompt would follow ours on its line
            raise


def _one_turn(conversation, line, is_terminal, verbose):
    if line == "/clear":
        conversation.clear()
    elif line == "/help":
        output.note(HELP)
    elif line.strip():
        try:
            answer = conversation.say(line)
        except ContextOverflowError as error:
            if not is_terminal:
                raise
            output.note(f"{error}; /clear begins anew")
        except KeyboardInterrupt:
            if not is_terminal:
                raise
        else:
            if conversation.is_cut_short(answer):
                output.note("the context is full, so this answer ends early; /clear begins anew, -c gives more room")
            if verbose:
                output.note(output.summary(answer))


class Conversation:
    """The messages so far; an answer joins them once it is there, also when it was stopped."""

    def __init__(self, engine, system, settings, as_json, progress):
        self._engine, self._settings, self._as_json = engine, settings, as_json
        self._progress = progress
        self._start = [{"role": "system", "content": system}] if system else []
        self._messages = list(self._start)

    def clear(self):
        self._messages = list(self._start)

    def is_cut_short(self, answer):
        """Whether a Completion ended because the context is full."""
        return answer.finish_reason == "length" and answer.n_prompt + answer.n_generated >= self._engine.n_ctx

    def say(self, text):
        """Ask, print the answer as it comes, and remember both. Returns the Completion."""
        asked = [*self._messages, {"role": "user", "content": text}]
        stream = self._engine.chat(
            asked, stream=True, progress=self._progress.tokens, **self._settings
        )
        try:
            for piece in stream:
                if not self._as_json:
                    output.write(piece)
        finally:
            self._progress.clear()
            if not self._as_json:
                output.write("\n")
            answer = stream.result
            self._messages = [*asked, {"role": "assistant", "content": answer.text}]
        if self._as_json:
            output.json_line(asdict(answer))
        return answer
