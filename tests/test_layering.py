"""The arrows of ARCHITECTURE.md, and what only certain folders may do."""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "moeengine"
# A part may import from parts with a higher number, and from itself.
ENGINE = ("engine", "session", "generation", "prompts", "turns", "answer_text", "kv_file", "model_info", "runtime", "blas")
LAYER = {
    "cli": 0,
    "engine": 1,  # and the other modules of ENGINE
    "quantize": 1,
    "sampling": 2,
    "graph": 2,
    "tokenizer": 2,
    "models": 2,
    "supply": 3,
    "loader": 4,
    "kernels": 5,
    "config": 6,
    "machine": 6,
    "stats": 6,
    "errors": 7,
}
IMPORT = re.compile(r"^\s*(?:from\s+(moeengine[\w.]*)\s+c?import\s+\(?([\w, ]+)|c?import\s+(moeengine[\w.]+))", re.M)
SOURCES = [p for ext in ("*.py", "*.pyx", "*.pxd") for p in sorted(PACKAGE.rglob(ext))]


def part_of(path):
    rel = path.relative_to(PACKAGE)
    name = rel.parts[0] if len(rel.parts) > 1 else rel.stem
    return "engine" if name in ENGINE else name


def imports_of(path):
    """Names of the moeengine parts that a source imports."""
    text = path.read_text()
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                names = [a.name for a in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [f"{node.module}.{a.name}" for a in node.names] if node.module == "moeengine" else [node.module]
            else:
                continue
            yield from (n.split(".")[1] for n in names if n and n.startswith("moeengine."))
    else:
        for module, names, plain in IMPORT.findall(text):
            module = module or plain
            if module == "moeengine":
                yield from (n.strip() for n in names.split(","))
            else:
                yield module.split(".")[1]


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_arrows_point_right(path):
    part = part_of(path)
    if part in ("__init__", "__main__", "_version"):
        return
    assert part in LAYER, f"{part} has no place in the layers"
    for other in imports_of(path):
        other = "engine" if other in ENGINE else other
        if other in LAYER and other != part:
            assert LAYER[part] < LAYER[other], f"{path.name} ({part}) imports {other}"


def test_the_checker_sees_wrong_arrows(tmp_path):
    (tmp_path / "a.py").write_text("from moeengine import engine\nimport moeengine.cli\n")
    (tmp_path / "a.pxd").write_text("from moeengine.graph.block cimport Pass\ncimport moeengine.supply\n")
    assert list(imports_of(tmp_path / "a.py")) == ["engine", "cli"]
    assert list(imports_of(tmp_path / "a.pxd")) == ["graph", "supply"]


@pytest.mark.parametrize("word, allowed", [
    (r"\bprint\(", {"cli"}),
    (r"\bsys\.exit\(|\bos\._exit\(", {"cli", "__main__"}),
    (r"\bos\.environ\b|\bgetenv\(", {"cli", "kernels"}),  # kernels: MOEENGINE_ISA, read in one place
    (r"\bprange\b|pthread_create", {"kernels"}),
])
def test_only_here(word, allowed):
    for path in SOURCES:
        if re.search(word, path.read_text()):
            assert part_of(path) in allowed, f"{word} in {path.relative_to(PACKAGE)}"
