"""One file an architecture, named exactly as general.architecture (dashes too); each offers build(builder)."""
