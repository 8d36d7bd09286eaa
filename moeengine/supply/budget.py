"""How much memory this process may still take: cgroup limits, versions 1 and 2, and what the machine has.

`root` is the folder that stands for `/`, so that tests can lay out a machine. What is missing or
unreadable means "no limit".
"""

import os
from dataclasses import dataclass
from pathlib import Path

from moeengine.machine import cgroup_folders

NO_LIMIT = 1 << 60  # version 1 says "none" with a number near 2**63


@dataclass(frozen=True)
class Room:
    """Memory that can still be taken.

    n_bytes : int      may be taken, page cache that can be given back included
    limit : int        bytes of the tightest limit in force
    why : str          which limit that is
    """

    n_bytes: int
    limit: int
    why: str


def memory_room(root="/"):
    """The tightest of: every control group from the process's own upward, and the machine (Room)."""
    rooms = [_machine_room(root)]
    for folder in cgroup_folders("memory", root):
        room = _group_room(folder)
        if room is not None:
            rooms.append(room)
    return min(rooms, key=lambda r: r.n_bytes)


def resident_bytes(root="/"):
    """Bytes of this process that are in memory, mapped files included; 0 where the system does not tell."""
    try:
        return int((Path(root) / "proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _machine_room(root):
    fields = _table(Path(root) / "proc/meminfo")
    total = fields.get("MemTotal:", NO_LIMIT >> 10) * 1024
    free = fields.get("MemAvailable:", total // 1024) * 1024
    return Room(free, total, "memory of the machine")


def _group_room(folder):
    """Room in one control group: the limit, less what is in use and cannot be given back; None: no limit."""
    # above memory.high nobody is killed, but all are slowed down until enough was given back
    limits = [_number(folder / name) for name in ("memory.max", "memory.high")]
    limit = min((n for n in limits if n is not None), default=None)
    version, used_by = 2, "memory.current"
    if limit is None:
        limit = _number(folder / "memory.limit_in_bytes")
        version, used_by = 1, "memory.usage_in_bytes"
    if limit is None or limit >= NO_LIMIT:
        return None
    stat = _table(folder / "memory.stat")
    prefix = "total_" if version == 1 else ""
    cache = sum(stat.get(f"{prefix}{kind}_file", 0) for kind in ("active", "inactive"))
    used = max(0, (_number(folder / used_by) or 0) - cache)
    return Room(max(0, limit - used), limit, f"limit of control group {folder.name or '/'}")


def _number(path):
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _table(path):
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    rows = (line.split() for line in lines)
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdecimal()}
