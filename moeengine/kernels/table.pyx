"""The choice of an instruction set, and what the compiled table says about quant types.

The choice is made once, when this module is imported: the best that the CPU offers, or the one that
MOEENGINE_ISA names. A name that cannot be had raises at first use, not at import.
"""
import os

from ..errors import UnsupportedError

cdef extern from "moe_table.h":
    const moe_isa *const moe_isa_list[]
    const char *moe_isa_problem(const moe_isa *isa)

cdef const moe_isa *_active = NULL
_wanted = None      # the name asked for where it could not be had


cdef const moe_isa *active() noexcept nogil:
    return _active


cdef const moe_isa *checked_isa() except NULL:
    if _active == NULL:
        raise _not_available(_wanted)
    return _active


def _not_available(name):
    return UnsupportedError(
        f"instruction set: found {name!r}, expected one that is compiled in and that this CPU "
        f"offers: {', '.join(_names(True))}{_why(name)}"
    )


def _why(name) -> str:
    """Why a compiled one cannot be had; "" for other names."""
    reason = _problems().get(name)
    return f" ({name}: {reason})" if reason else ""


cdef dict _problems():
    problems = {}
    cdef const char *problem
    cdef int i = 0
    while moe_isa_list[i] != NULL:
        problem = moe_isa_problem(moe_isa_list[i])
        if problem != NULL:
            problems[moe_isa_list[i].name.decode()] = problem.decode()
        i += 1
    return problems


cdef list _names(bint supported_only, bint for_tests=False):
    names = []
    cdef const moe_isa *one
    cdef int i = 0
    while moe_isa_list[i] != NULL:
        one = moe_isa_list[i]
        if one.for_tests == for_tests and (not supported_only or moe_isa_problem(one) == NULL):
            names.append(one.name.decode())
        i += 1
    return names


cdef const moe_isa *_find(name) noexcept:
    """The best where name is empty; NULL where it cannot be had."""
    cdef const moe_isa *one
    cdef int i = 0
    while moe_isa_list[i] != NULL:
        one = moe_isa_list[i]
        if (one.name.decode() == name if name else not one.for_tests) and moe_isa_problem(one) == NULL:
            return one
        i += 1
    return NULL


def isa() -> dict:
    """Tell which instruction set computes.

    Returns
    -------
    dict : active (str); available (list of str, what this CPU offers) and compiled (list of str),
        best first; refused (dict: name of a compiled one that is not available -> why); for_tests (list of str,
        never chosen unless MOEENGINE_ISA or `set_isa` name them)

    Raises
    ------
    UnsupportedError    MOEENGINE_ISA names one that is not available
    """
    return {
        "active": checked_isa().name.decode(),
        "available": _names(True),
        "compiled": _names(False),
        "refused": _problems(),
        "for_tests": _names(True, for_tests=True),
    }


def set_isa(name: str) -> None:
    """Compute with the instruction set `name` from now on; "" is the best one. For tests.

    Activation rows and caches that exist already belong to the old one: call it before any Engine
    is made.

    Raises
    ------
    UnsupportedError    not compiled in, or not offered by this CPU; the choice stays as it was
    """
    global _active
    cdef const moe_isa *found = _find(name)
    if found == NULL:
        raise _not_available(name)
    _active = found


def quant_types() -> dict:
    """List the weight types: name -> (ggml type id, weights a block, bytes a block)."""
    cdef const moe_isa *table = _find("scalar")
    cdef const moe_type *one
    cdef int i
    types = {}
    for i in range(MOE_TYPE_MAX):
        one = &table.types[i]
        if one.name != NULL:
            types[one.name.decode()] = (one.id, one.block, one.bytes)
    return types


_wanted = os.environ.get("MOEENGINE_ISA", "")
_active = _find(_wanted)
