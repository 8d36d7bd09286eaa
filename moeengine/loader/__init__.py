"""From bytes on disk to located, typed tensors: GGUF scan, shard sets, mappings, expert banks.

gguf_file    one file: header scan with every bound checked
model_file   one model: all shards of a set, typed metadata, tensor views
mapped_file  one read-only mapping: advice, residency
banks        the expert tensors of a layer: tiers, slices, byte ranges
"""
