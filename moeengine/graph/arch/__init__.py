"""One file an architecture, named after general.architecture; each offers build(builder)."""
