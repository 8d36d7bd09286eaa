"""How the loader words its errors. Names from files are escaped: no file can forge a log line."""

MAX_NAME_SHOWN = 160


def escaped(text):
    """`text` with unprintable characters written as escapes, cut when very long."""
    text = str(text)
    if len(text) > MAX_NAME_SHOWN:
        text = text[:MAX_NAME_SHOWN] + "..."
    return _printable(text)


def quoted(name):
    """A key or tensor name in quotes, escaped."""
    return f"'{escaped(name)}'"


def at_tensor(path, name):
    """The start of a message about a tensor: file and name."""
    return f"{shown_path(path)}: tensor {quoted(name)}"


def shown_path(path):
    """A path in full, escaped."""
    return _printable(str(path))


def _printable(text):
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def plural(n, noun):
    """'1 byte', '2 bytes'."""
    return f"{n} {noun}" + ("" if n == 1 else "s")
