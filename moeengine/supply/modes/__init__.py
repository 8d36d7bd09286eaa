"""One file a supply mode; found by listing this folder."""
