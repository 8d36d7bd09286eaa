"""What this process may use of the machine: CPUs (affinity, cgroup quota, cores), address space.

Every function takes `root`, the folder that stands for `/`, so that tests can lay out a machine.
Files that are missing or unreadable mean "no limit", never an error.
"""

import os
import resource
from pathlib import Path, PurePosixPath


def default_n_threads(root="/"):
    """Threads that may run at once: min(affinity, cgroup quota, physical cores), at least 1.

    Parameters
    ----------
    root : str or Path           folder that stands for `/`

    Returns
    -------
    n_threads : int
    """
    cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    cpus = cpus or list(range(os.cpu_count() or 1))
    limits = [len(cpus), n_cores(cpus, root)]
    quota = cpu_quota(root)
    if quota is not None:
        limits.append(quota)
    return max(1, min(limits))


def n_cores(cpus, root="/"):
    """Physical cores among the logical `cpus`: hyper-threads of one core count once."""
    cores = set()
    for cpu in cpus:
        topology = Path(root) / f"sys/devices/system/cpu/cpu{cpu}/topology"
        siblings = _read(topology / "thread_siblings_list") or _read(topology / "core_cpus_list")
        cores.add(siblings or f"cpu {cpu}")
    return len(cores)


def cpu_quota(root="/"):
    """CPUs that the control groups of this process grant, or None where nothing limits them.

    Walks from the process's own group to the top of the mounted hierarchy, versions 1 and 2, and
    takes the tightest quota, rounded down and at least 1: a team larger than the quota is put to
    sleep by the kernel in the middle of a barrier.
    """
    quotas = []
    for folder in cgroup_folders("cpu", root):
        text = _read(folder / "cpu.max")  # version 2: "max 100000" or "150000 100000"
        if text is None:  # version 1: two files, quota -1 means none
            text = f"{_read(folder / 'cpu.cfs_quota_us')} {_read(folder / 'cpu.cfs_period_us')}"
        parts = text.split()
        if len(parts) == 2 and all(p.isdecimal() for p in parts) and int(parts[1]) > 0:
            quotas.append(max(1, int(parts[0]) // int(parts[1])))
    return min(quotas) if quotas else None


def cgroup_folders(controller, root="/"):
    """Folders of the control groups this process is in for `controller`, its own group first.

    Source: cgroups(7): `/proc/self/cgroup` names the group, `/proc/self/mountinfo` where each
    hierarchy is mounted and which part of it is visible.
    """
    groups = {}
    for line in (_read(Path(root) / "proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        names, _, group = rest.partition(":")
        for name in [""] if number == "0" else names.split(","):
            groups[name] = group
    folders = []
    for line in (_read(Path(root) / "proc/self/mountinfo") or "").splitlines():
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if len(fields) < 5 or len(kinds) < 3:
            continue
        if kinds[0] == "cgroup2" and "" in groups:
            folders += _walk_up(groups[""], fields[3], fields[4], root)
        elif kinds[0] == "cgroup" and controller in kinds[2].split(",") and controller in groups:
            folders += _walk_up(groups[controller], fields[3], fields[4], root)
    return folders


def address_space(root="/"):
    """(limit, bytes in use) of this process's address space, or None where nothing limits it."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    pages = (_read(Path(root) / "proc/self/statm") or "0").split()[0]
    return limit, int(pages) * resource.getpagesize()


def address_space_limit():
    """`address_space` in words; "" where nothing limits it."""
    found = address_space()
    if found is None:
        return ""
    limit, used = (n / 1e6 for n in found)
    return f"address space is limited to {limit:.0f} MB (ulimit -v), of which {used:.0f} MB are in use"


def require_address_space(n_bytes, what):
    """MemoryError where about n_bytes for `what` would not fit: for libraries that end the process then."""
    found = address_space()
    if found is not None and found[0] - found[1] < n_bytes:
        raise MemoryError(f"{what}: about {n_bytes / 1e6:.0f} MB are needed; {address_space_limit()}")


def _walk_up(group, visible, mount, root):
    """Folders from `group` up to the mount point. A group outside what is visible: the top only."""
    top = Path(root) / mount.lstrip("/")
    try:
        below = PurePosixPath(group).relative_to(PurePosixPath(visible)).parts
    except ValueError:
        below = ()
    if ".." in below:
        below = ()
    return [top.joinpath(*below[:n]) for n in range(len(below), -1, -1)]


def _read(path):
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
