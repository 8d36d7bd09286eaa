"""nemotron_h_moe: Nemotron 3 Nano (30B-A3B); as nemotron_h, and the networks are experts, one of them shared by all tokens."""

from moeengine.graph.arch.nemotron_h import build  # noqa: F401
