"""mmap: the page cache decides. No hook is set; the reference for all other modes."""

from moeengine.supply.base import ExpertSupply

SETTINGS = ()


def make(settings):
    """A supply that leaves everything to the page cache."""
    return ExpertSupply()
