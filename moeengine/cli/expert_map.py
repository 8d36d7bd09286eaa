"""`moeengine expert-map`: the byte ranges of every expert of a model file, as a binary table for --expert-map."""

import os

from moeengine.cli import output
from moeengine.errors import ConfigError


def add_arguments(parser):
    parser.add_argument("model", metavar="MODEL", help="GGUF file with experts, in one part")
    parser.add_argument("-o", "--output", metavar="MAP", required=True, help="file to write")
    parser.add_argument("--force", action="store_true", help="replace MAP if it exists (default: refuse)")


def run(args):
    from moeengine.loader.expert_map import map_of, write_map
    from moeengine.loader.model_file import ModelFile
    from moeengine.loader.whole_file import check_writable

    if os.path.exists(args.output) and not args.force:
        raise ConfigError(f"{args.output}: found a file, expected none; --force replaces it")
    check_writable(args.output)
    with ModelFile.open(args.model) as model_file:
        found = map_of(model_file)
    write_map(args.output, found)
    n_expert = sum(map(len, found.layers))
    output.note(f"{args.output}: {n_expert} experts in {len(found.layers)} layers")
    return 0
