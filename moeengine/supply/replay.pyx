"""What a cache would have held of a recorded routing: the table's own policies, without a file or a byte read."""
from libc.math cimport INFINITY
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

import numpy as np

from moeengine.supply.expert_table cimport (
    Expert, POLICY_LFU, POLICY_LRU, Slot, SlotClass, Table, TierState, place, shadow_use, shadows_free, shadows_init,
    slot_for, touch,
)

from moeengine.supply.expert_table import HALF_LIFE_TOKENS


cdef class Replay:
    """A cache of n_slots experts of one size, over n_layers layers of n_expert each, n_used a token."""
    cdef Table t

    def __cinit__(self, int n_layers, int n_expert, int n_used, int n_slots, str policy="lfu"):
        cdef Table *t = &self.t
        cdef int64_t i
        memset(t, 0, sizeof(Table))
        t.n_experts, t.n_tiers, t.n_slots, t.n_classes = n_layers * n_expert, n_layers, n_slots, 1
        t.policy, t.half_life = POLICY_LFU if policy == "lfu" else POLICY_LRU, HALF_LIFE_TOKENS
        t.experts = <Expert *>calloc(max(1, t.n_experts), sizeof(Expert))
        t.tiers = <TierState *>calloc(max(1, n_layers), sizeof(TierState))
        t.slots = <Slot *>calloc(max(1, n_slots), sizeof(Slot))
        t.classes = <SlotClass *>calloc(1, sizeof(SlotClass))
        if not (t.experts and t.tiers and t.slots and t.classes):
            raise MemoryError
        t.classes[0].n = t.classes[0].n_free = n_slots
        t.classes[0].n_experts, t.classes[0].n_uses = t.n_experts, n_layers * n_used
        for i in range(n_slots):
            t.slots[i].expert = -1
        for i in range(n_layers):
            t.tiers[i].n_expert, t.tiers[i].first, t.tiers[i].i = n_expert, i * n_expert, i
        for i in range(t.n_experts):
            t.experts[i].slot = t.experts[i].used = t.experts[i].pin = t.experts[i].rare = -1
            t.experts[i].key = -INFINITY
        shadows_init(t)

    def run(self, chosen):
        """Feed tokens one by one.

        chosen : integers (L, T, A)   as the routing callback gives them; -1: no expert

        Returns
        -------
        hits : int64 (T,)             experts of each token that were there
        """
        cdef Table *t = &self.t
        cdef int64_t token, layer, a, slot
        cdef Expert *e
        cdef const int32_t[:, :, ::1] ids = np.ascontiguousarray(chosen, np.int32)
        hits = np.zeros(ids.shape[1], np.int64)
        cdef int64_t[::1] found = hits
        if ids.shape[0] != t.n_tiers:
            raise ValueError(f"chosen: found {ids.shape[0]} layers, expected {t.n_tiers}")
        for token in range(ids.shape[1]):
            t.clock += 1
            for layer in range(t.n_tiers):
                t.step += 1
                for a in range(ids.shape[2]):
                    if not -1 <= ids[layer, token, a] < t.tiers[layer].n_expert:
                        raise ValueError(f"chosen: found {ids[layer, token, a]}, expected an expert")
                    if ids[layer, token, a] >= 0:
                        e = &t.experts[t.tiers[layer].first + ids[layer, token, a]]
                        touch(t, e, 1, 1)
                        found[token] += e.slot >= 0
                for a in range(ids.shape[2]):
                    if ids[layer, token, a] < 0:
                        continue
                    e = &t.experts[t.tiers[layer].first + ids[layer, token, a]]
                    shadow_use(t, &t.tiers[layer], e)
                    if e.slot < 0:
                        slot = slot_for(t, &t.tiers[layer], e, False)
                        if slot >= 0:
                            place(t, &t.tiers[layer], e, slot)
        return hits

    @property
    def n_departures(self):
        """Evictions that LRU would not have made."""
        return self.t.classes[0].n_departures

    def __dealloc__(self):
        shadows_free(&self.t)
        free(self.t.experts)
        free(self.t.tiers)
        free(self.t.slots)
        free(self.t.classes)
