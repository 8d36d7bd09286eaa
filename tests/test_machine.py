"""Threads by default: quota, affinity and cores, on machines laid out in a folder."""

import os
import subprocess
import sys

import pytest

from moeengine import machine

V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
V1_MOUNT = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct"


def lay_out(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def v2(root, group, quotas):
    files = {"proc/self/cgroup": f"0::{group}\n", "proc/self/mountinfo": V2_MOUNT + "\n"}
    files |= {f"sys/fs/cgroup/{g}/cpu.max": text + "\n" for g, text in quotas.items()}
    return lay_out(root, files)


def v1(root, group, quotas, mount=V1_MOUNT):
    files = {
        "proc/self/cgroup": f"4:memory:/m\n3:cpu,cpuacct:{group}\n0::/\n",
        "proc/self/mountinfo": "1 2 3\n" + mount + "\n",
    }
    for g, (quota, period) in quotas.items():
        files[f"sys/fs/cgroup/cpu,cpuacct/{g}/cpu.cfs_quota_us"] = f"{quota}\n"
        files[f"sys/fs/cgroup/cpu,cpuacct/{g}/cpu.cfs_period_us"] = f"{period}\n"
    return lay_out(root, files)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("max 100000", None),
        ("765000 100000", 7),
        ("200000 100000", 2),
        ("50000 100000", 1),
        ("1000 100000", 1),
        ("garbage", None),
        ("100000 0", None),
        ("", None),
    ],
)
def test_version_2_rounds_down_and_is_at_least_one(tmp_path, text, expected):
    assert machine.cpu_quota(v2(tmp_path, "/a", {"a": text})) == expected


def test_version_2_takes_the_tightest_group_on_the_way_up(tmp_path):
    root = v2(
        tmp_path, "/a/b/c", {"a/b/c": "800000 100000", "a/b": "max 100000", "a": "350000 100000"}
    )
    assert machine.cpu_quota(root) == 3


def test_version_2_group_named_outside_its_namespace(tmp_path):
    root = v2(tmp_path, "/../../other", {"": "250000 100000"})
    assert machine.cpu_quota(root) == 2


def test_version_1_nested(tmp_path):
    root = v1(tmp_path, "/a/b", {"a/b": (-1, 100000), "a": (765000, 100000), "": (-1, 100000)})
    assert machine.cpu_quota(root) == 7


def test_version_1_no_quota(tmp_path):
    assert machine.cpu_quota(v1(tmp_path, "/a", {"a": (-1, 100000)})) is None


def test_version_1_container_that_sees_only_its_own_group(tmp_path):
    mount = V1_MOUNT.replace(" / /sys", " /docker/77 /sys")
    root = v1(tmp_path, "/docker/77", {"": (150000, 100000)}, mount)
    assert machine.cpu_quota(root) == 1


def test_no_cgroup_files(tmp_path):
    assert machine.cpu_quota(tmp_path) is None
    assert machine.default_n_threads(tmp_path) == len(os.sched_getaffinity(0))


def test_hyper_threads_count_once(tmp_path):
    topology = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    root = lay_out(tmp_path, {topology.format(i): f"{i % 2},{i % 2 + 2}\n" for i in range(4)})
    assert machine.n_cores([0, 1, 2, 3], root) == 2
    assert machine.n_cores([0, 2], root) == 1
    assert machine.n_cores([8, 9], root) == 2  # nothing known: each is a core


def test_the_quota_limits_the_default(tmp_path):
    assert machine.default_n_threads(v2(tmp_path, "/a", {"a": "100000 100000"})) == 1


def test_affinity_limits_the_default():
    cpu = min(os.sched_getaffinity(0))
    code = (
        f"import os; os.sched_setaffinity(0, [{cpu}]);"
        "from moeengine.machine import default_n_threads as d; print(d())"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "1\n"
