"""The command line: one table of commands, and what happens to their errors.

A command is one module with `add_arguments(parser)` and `run(args) -> exit status`. Only the module
of the command that was asked for is imported.
"""

import argparse
import importlib
import os
import signal
import sys
import threading

from moeengine import __version__
from moeengine.errors import MoeEngineError
from moeengine.machine import address_space

COMMANDS = {  # name: (module, summary)
    "generate": ("moeengine.cli.generate", "continue a prompt"),
    "chat": ("moeengine.cli.chat", "talk to the model, in the template that its file carries"),
    "info": ("moeengine.cli.info", "what a model file holds and how much memory it needs"),
    "bench": ("moeengine.cli.bench", "tokens a second on this machine"),
    "perplexity": ("moeengine.cli.perplexity", "how well a model foretells a text"),
    "tokenize": ("moeengine.cli.tokenize", "the token ids of a text"),
    "trace": ("moeengine.cli.trace", "which experts a text uses, and what a cache would hold of them"),
    "expert-map": ("moeengine.cli.expert_map", "write the table of a model's expert ranges"),
    "iobench": ("moeengine.cli.iobench", "what the drive gives at the size of an expert slice"),
    "quantize": ("moeengine.cli.quantize", "write a model again in another quant type"),
    "retier": ("moeengine.cli.retier", "spread experts over banks of different quant types"),
}
EXIT_ERROR, EXIT_USAGE, EXIT_INTERRUPTED, EXIT_TERMINATED = 1, 2, 130, 143


def main(argv=None):
    """Run one command. Returns the exit status: 0, 1 (error), 2 (bad usage), 130 (Ctrl-C), ..."""
    argv = list(sys.argv[1:] if argv is None else argv)
    show_traceback = "--traceback" in argv
    _replace_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that is not UTF-8 still gets its text
    previous = _handle_signals()
    from moeengine.cli import output  # only now: a signal inside an import before would end in a traceback

    try:
        args, unknown = _parser(argv).parse_known_args(argv)
        if unknown:
            args.parser.error(_unknown_message(args.parser, unknown))
        status = args.run(args)
        output.flush()
        return status
    except SystemExit as request:  # argparse, SIGTERM
        return request.code if isinstance(request.code, int) else EXIT_USAGE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _discard_stdout()
        return EXIT_ERROR
    except (MoeEngineError, OSError, MemoryError, ImportError) as error:
        if show_traceback or isinstance(error, ImportError) and address_space() is None:
            raise
        if isinstance(error, OSError) and error.filename == output.STDOUT:
            _discard_stdout()
        print(f"moeengine: {' '.join(_message(error).split())}", file=sys.stderr)
        return EXIT_ERROR
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _parser(argv):
    """The parser; of the commands only the one that argv names gets its arguments."""
    parser = argparse.ArgumentParser(
        prog="moeengine",
        description="Run Mixture-of-Experts language models from GGUF files on the CPU.",
        epilog="`moeengine COMMAND --help` lists the options of a command.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"moeengine {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    chosen = next((a for a in argv if not a.startswith("-")), None)
    for name, (module_name, summary) in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            allow_abbrev=False,
        )
        if name == chosen:
            module = importlib.import_module(module_name)
            module.add_arguments(command)
            command.add_argument(
                "--traceback", action="store_true", help="show where in the program an error arose"
            )
            command.set_defaults(run=module.run, parser=command)
    return parser


def _unknown_message(parser, unknown):
    """What is wrong with arguments that no command takes; names the nearest option."""
    import difflib  # only for this message: --help is to be quick

    message = f"unrecognized arguments: {' '.join(unknown)}"
    name = unknown[0].partition("=")[0]
    known = [flag for action in parser._actions for flag in action.option_strings]
    if close := difflib.get_close_matches(name, known, 1):
        return f"{message}; did you mean {close[0]}?"
    return message + ("; a text is given with -p" if not name.startswith("-") and "-p" in known else "")


def _message(error):
    """One line about an error; the system's name the file first, as ours do."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    words = str(error) or ("out of memory" if isinstance(error, MemoryError) else type(error).__name__)
    if isinstance(error, (MemoryError, ImportError)) and (space := address_space()) and "ulimit" not in words:
        return f"{words}; address space is limited to {space[0] / 1e6:.0f} MB (ulimit -v)"
    return words


def _replace_closed_streams():
    """Standard streams that the caller closed are None; read nothing from them, write nowhere."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))


def _handle_signals():
    """SIGTERM ends the program, also as process 1 of a container; Ctrl-C does so whenever it comes.

    Returns the handlers that were there before, by signal.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}

    def leave(number, frame):
        if _is_importing(frame):  # where an exception may come out as another one, or be swallowed
            _leave_at_once(EXIT_TERMINATED)
        raise SystemExit(EXIT_TERMINATED)

    def interrupt(number, frame):
        if _is_importing(frame):
            _leave_at_once(EXIT_INTERRUPTED)
        raise KeyboardInterrupt

    handlers = {signal.SIGTERM: leave}
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        handlers[signal.SIGINT] = interrupt
    return {number: signal.signal(number, handler) for number, handler in handlers.items()}


def _is_importing(frame):
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _leave_at_once(status):
    try:
        sys.stdout.flush()
    except (OSError, ValueError, RuntimeError):
        pass  # nobody reads, or the interrupt hit inside a write
    os._exit(status)


def _discard_stdout():
    """Nobody reads on: keep the interpreter from complaining about it when it flushes at exit."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        pass  # not a real file
