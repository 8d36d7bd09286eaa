"""granite: Granite 3 and 4.0 without experts, and files of Granite 3 MoE by this name; layers as granitemoe's, which some files do
not rotate."""

from moeengine.graph.arch import granitemoe


def build(b):
    granitemoe.build(b, with_rope=b.file.get_bool(f"{b.hparams.arch}.rope.scaling.finetuned", True))
