"""Options of `pytest bench/`, the engines beside ours, and the table printed at the end.

Nothing here is seen by `pytest tests/`.
"""

import os

import pytest

from bench import peers

TABLE = []  # lines of the final table, in the order of the tests


def pytest_addoption(parser):
    group = parser.getgroup("moeengine bench")
    group.addoption("--stock", metavar="PATH", help="Python, venv or llama.cpp build to compare with")
    group.addoption("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: all")
    group.addoption("--model", metavar="GGUF", help="file of the model benches (default: synthesized)")
    group.addoption("--types", metavar="A,B", help="only these quant types in the kernel benches")


def pytest_collect_file(file_path, parent):
    named_on_command_line = parent.session.isinitpath(file_path)  # pytest itself collects those
    is_bench = file_path.suffix == ".py" and file_path.name.startswith("bench_")
    if is_bench and not named_on_command_line:
        return pytest.Module.from_parent(parent, path=file_path)
    return None


def pytest_terminal_summary(terminalreporter):
    if TABLE:
        terminalreporter.section("moeengine bench")
        for line in TABLE:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def n_threads(request) -> int:
    return request.config.getoption("--threads")


@pytest.fixture(scope="session")
def stock_peer(request):
    """The peer of --stock, or None."""
    path = request.config.getoption("--stock")
    return peers.stock(path) if path else None


@pytest.fixture(scope="session")
def table():
    """A function that adds a line to the final table."""
    return TABLE.append
