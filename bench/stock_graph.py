"""One matrix product of stock's CPU backend, as a one-node ggml graph driven through ctypes.

Weights lie as in the file: the copies in another row order that stock makes of some types when it
loads a model are not used here.
"""

import ctypes
import time
from ctypes import POINTER, c_bool, c_int, c_int64, c_size_t, c_uint8, c_void_p
from pathlib import Path

import numpy as np


class _InitParams(ctypes.Structure):
    _fields_ = [("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool)]


class _Plan(ctypes.Structure):
    _fields_ = [
        ("work_size", c_size_t), ("work_data", POINTER(c_uint8)), ("n_threads", c_int),
        ("threadpool", c_void_p), ("abort_callback", c_void_p), ("abort_data", c_void_p),
        ("use_ref", c_bool),
    ]  # fmt: skip


class Product:
    """out (T, R) = x (T, C) @ W.T for a weight of one ggml type."""

    def __init__(self, raw, type_id, x, n_threads):
        """raw : uint8 (R, bytes); type_id : ggml's number; x : float32 (T, C)"""
        g = self._lib = _libraries()
        n_rows, n_cols, n_x = raw.shape[0], x.shape[1], x.shape[0]
        size = raw.nbytes + 4 * n_x * (n_cols + n_rows) + (8 << 20)
        self._ctx = g.ggml_init(_InitParams(size, None, False))
        w = g.ggml_new_tensor_2d(self._ctx, type_id, n_cols, n_rows)
        b = g.ggml_new_tensor_2d(self._ctx, 0, n_cols, n_x)
        out = g.ggml_mul_mat(self._ctx, w, b)
        ctypes.memmove(g.ggml_get_data(w), raw.ctypes.data, raw.nbytes)
        ctypes.memmove(g.ggml_get_data(b), x.ctypes.data, x.nbytes)
        self._graph = g.ggml_new_graph(self._ctx)
        g.ggml_build_forward_expand(self._graph, out)
        self._plan = g.ggml_graph_plan(self._graph, n_threads, None)
        self._work = (c_uint8 * max(1, self._plan.work_size))()
        self._plan.work_data = ctypes.cast(self._work, POINTER(c_uint8))
        address = ctypes.cast(g.ggml_get_data(out), POINTER(ctypes.c_float))
        self.out = np.ctypeslib.as_array(address, (n_x, n_rows))

    def run(self) -> float:
        """Seconds of one product."""
        start = time.perf_counter()
        status = self._lib.ggml_graph_compute(self._graph, ctypes.byref(self._plan))
        if status:
            raise RuntimeError(f"ggml_graph_compute returned {status}")
        return time.perf_counter() - start

    def free(self):
        self._lib.ggml_free(self._ctx)
        self.out = None


class _Functions:
    pass


def _libraries():
    """The ggml functions needed, from the libraries that llama-cpp-python has loaded."""
    import llama_cpp

    folder = Path(llama_cpp.__file__).parent / "lib"
    base, cpu = (ctypes.CDLL(str(folder / f"libggml-{part}.so")) for part in ("base", "cpu"))
    g = _Functions()
    for library, name, result, arguments in (
        (base, "ggml_init", c_void_p, [_InitParams]),
        (base, "ggml_free", None, [c_void_p]),
        (base, "ggml_new_tensor_2d", c_void_p, [c_void_p, c_int, c_int64, c_int64]),
        (base, "ggml_mul_mat", c_void_p, [c_void_p] * 3),
        (base, "ggml_get_data", c_void_p, [c_void_p]),
        (base, "ggml_new_graph", c_void_p, [c_void_p]),
        (base, "ggml_build_forward_expand", None, [c_void_p] * 2),
        (cpu, "ggml_cpu_init", None, []),
        (cpu, "ggml_graph_plan", _Plan, [c_void_p, c_int, c_void_p]),
        (cpu, "ggml_graph_compute", c_int, [c_void_p, POINTER(_Plan)]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
        setattr(g, name, function)
    g.ggml_cpu_init()
    return g
