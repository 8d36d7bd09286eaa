from libc.stdint cimport int64_t

# How positions turn into angles; graph.rope.RopeConfig as C sees it.
cdef struct Rope:
    int64_t n_rot
    float theta_scale           # freq_base ** (-2 / n_rot)
    float freq_scale            # 1 / factor
    float ext_factor            # 0, or YaRN's mix of the two angles
    float attn_factor
    float corr_low, corr_high   # YaRN: pairs below low are extrapolated, above high interpolated

# cos and sin of every pair at one position, cs (n_rot,); freq_factors (n_rot/2,) or NULL
cdef void rope_row(const Rope *r, const float *freq_factors, int64_t pos, float *cs) noexcept nogil
cdef void rope_init(Rope *r, config)
