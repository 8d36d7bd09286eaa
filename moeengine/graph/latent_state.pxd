"""What the parts of latent attention share: the state of its block; mla.pyx says how it works."""
from libc.stdint cimport int64_t

from moeengine.graph.attention cimport Attention
from moeengine.graph.block cimport Linear
from moeengine.graph.chosen_keys cimport ChosenKeys
from moeengine.graph.temperature cimport Temperature


cdef struct Latent:
    int64_t n_embd, n_head, n_lora_q, n_lora, n_nope, n_rot, head_dim_v
    bint absorbed
    float eps, scale
    Temperature temperature
    bint with_rope              # else the n_rot values are as the others
    const float *attn_norm      # (E,)
    Linear down[5]              # q_a, or q where queries have no latent; kv_a; a gate; the indexer's keys and weights
    int64_t down_at[5]          # from the third on: where their results lie in Pass.wide, floats a token
    int n_down
    int64_t gate_rows           # gates a token: one a head or one a value of the result; 0: none
    int64_t gate_at             # in Pass.wide, floats a token
    bint neox                   # see AttentionBlock
    const float *sinks          # absorbed: (H,) or NULL
    const float *q_a_norm       # (n_lora_q,)
    const float *kv_a_norm      # (n_lora,)
    Linear q_b
    Linear k_b                  # absorbed: (n_lora, n_nope) a head, one after the other
    Linear v_b                  # absorbed: (Dv, n_lora) a head
    Linear kv_b                 # plain: (n_nope + Dv, n_lora) a head
    Linear wo
    int64_t kv_offset
    unsigned formats
    Attention heads             # plain: attention as usual, over what kv_b made
    ChosenKeys chosen           # absorbed: of how many positions, and which, a token sees


cdef inline int64_t latent_row(const Latent *m) noexcept nogil:
    """Floats of a latent with its rotated part."""
    return m.n_lora + m.n_rot


cdef inline int64_t head_dim(const Latent *m) noexcept nogil:
    """Floats of one head's query before absorption."""
    return m.n_nope + m.n_rot
