"""A loaded model as a list of blocks, and the Context that runs them over one timeline.

Model: weights and blocks, shared, never changed after load. Context: KV cache, scratch and the call
into compiled code. One forward pass is one call: the GIL is released, the team wakes once and walks
the blocks together.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

import importlib
import pkgutil

import numpy as np

from moeengine.graph.block cimport (
    KV_WHOLE, KV_WINDOW, Block, cancelled, OUTPUT_ALL, OUTPUT_LAST, OUTPUT_NONE, PASS_NAN_EXPERT, PASS_NAN_ROUTER, PASS_SUPPLY, Pass,
    ROW_CHUNK, X_CHUNK_ROWS, block_fn,
)
from moeengine.graph.attention cimport Q_ROWS, SPLIT_TOKENS
from moeengine.graph.kv_cache cimport KvCache
from moeengine.graph.recurrent cimport RecurrentState
from moeengine.kernels.region cimport Region, scratch_of, take
from moeengine.kernels.table cimport (
    MOE_KV_SEGMENT, MOE_X_COUNT, checked_isa, moe_attn_partial_floats, moe_isa, moe_x_row_bytes,
)
from moeengine.kernels.threads cimport Team, team_is_crowded, team_run, team_run_alone

from moeengine.errors import (
    CancelledError, ConfigError, ContextOverflowError, GGUFError, NumericError, SupplyError, UnsupportedError,
)
from moeengine.graph import arch as arch_package
from moeengine.graph.kv_cache import kv_bytes
from moeengine.supply.base import ExpertSupply, ModelAt

# A pass of fewer multiplications is done before a team has woken up and waited for itself.
ALONE_BELOW = 1_000_000
# Queries (token x head) that go through attention over latents together: they are wide, and a chunk of a prompt has many.
cdef enum:
    LATENT_ROWS = 16384
# Tokens of a pass that one thread does alone while other programs crowd a team of two out of its processors.
CROWDED_TOKENS = 8

OUTPUTS = {"none": OUTPUT_NONE, "last": OUTPUT_LAST, "all": OUTPUT_ALL}


def available():
    """Architectures that can be loaded: the names of the files in graph/arch, letter for letter (dashes too)."""
    return sorted(m.name for m in pkgutil.iter_modules(arch_package.__path__))


def load_model(model_file, *, n_expert_used=None):
    """Resolve every tensor of a model file and build its blocks.

    Parameters
    ----------
    model_file : loader.ModelFile     stays open as long as the Model lives
    n_expert_used : int or None       experts per token, 1 to n_expert; other than the file's is lossy

    Returns
    -------
    Model

    Raises
    ------
    UnsupportedError    unknown architecture, quant type or rope scaling
    GGUFError           a tensor or key is missing, or has another shape, type or range than expected
    ConfigError         n_expert_used out of range
    """
    from moeengine.graph.builder import Builder

    name = model_file.architecture
    if name not in available():
        raise UnsupportedError(
            f"{model_file.files[0].path}: architecture {name!r} is not supported; supported: {', '.join(available())}"
        )
    module = importlib.import_module(f"moeengine.graph.arch.{name}")
    builder = Builder(model_file, n_expert_used=n_expert_used)
    module.build(builder)
    return Model(builder)


cdef class Model:
    """Blocks and hyper-parameters. Safe to share between Contexts and Python threads."""
    cdef readonly object hparams        # hparams.HParams
    cdef readonly object sizes          # hparams.Sizes
    cdef readonly list blocks
    cdef readonly object file           # ModelFile
    cdef readonly list moe_blocks       # the MoeBlocks, layer ascending
    cdef readonly dict weights          # name -> Weight of every dense matrix
    cdef readonly list pointers         # (name, address) of every weight but the experts'
    cdef readonly object supply         # the ExpertSupply in use, or None: all left to the page cache
    cdef readonly bint has_readers      # of the supply: they take processors too, and are no crowd

    def __init__(self, builder):
        self.hparams, self.sizes, self.blocks = builder.hparams, builder.sizes, builder.blocks
        self.file, self.moe_blocks, self.weights = builder.file, builder.moe_blocks, builder.weights
        self.pointers = builder.tensors.pointers

    def located(self):
        """ModelAt: where the expert tensors lie."""
        layers = tuple(block.located() for block in self.moe_blocks)
        dense = {}
        for info in self.file.tensors.values():
            if self.file.is_skipped(info.name):
                continue
            if info.name not in self.file.moved and "_exps" not in info.name and info.name != "token_embd.weight":
                parts = info.name.split(".")
                il = int(parts[1]) if parts[0] == "blk" and parts[1].isdecimal() else -1
                dense.setdefault(il, []).append((info.shard, info.offset, info.n_bytes))
        return ModelAt(layers, self.file.maps, self.hparams.n_expert_used, dense)

    def set_supply(self, supply, n_layers_ahead=0):
        """Let `supply` bring the expert bytes from now on. Before any Context runs.

        n_layers_ahead : int    in passes of one token, so many later layers' routers are asked at each
                                layer what they would choose, as a hint to the supply; changes no result

        Raises
        ------
        SupplyError, ConfigError    it cannot serve this model
        """
        supply.bind(self.located())
        for i, block in enumerate(self.moe_blocks):
            block.set_supply(supply)
            block.set_ahead(self.moe_blocks[i + 1:i + 1 + n_layers_ahead])
        self.supply = supply
        self.has_readers = type(supply) is not ExpertSupply

    def expert_pointers(self):
        """(name, address) of expert 0 in every bank, as blocks hold them; address 0: the supply has them all."""
        return [row for block in self.moe_blocks for row in block.bank_pointers()]

    def forget_experts(self):
        """Let go of the experts' addresses in the mapping. For a supply that never reads there."""
        for block in self.moe_blocks:
            block.forget_banks()
        self.supply.mapping_released()

    def nodes(self):
        """What the last pass did a tensor of experts: list of dict, in the order of the pass.

        layer, tensor, part ("gate", "up", "down"), n_expert, n_used (experts), n_pairs (of token and slot), and
        what ExpertSupply.take_nodes counts
        """
        counts, rows = iter(self.supply.take_nodes()), []
        for block in self.moe_blocks:
            for tier, (n_used, n_pairs) in zip(block.tiers, block.last_use()):
                for part, bank in zip(("gate", "up", "down"), tier.banks):
                    counted = next(counts)
                    if bank.tensor.n_rows:       # else there is no such part
                        rows.append({"layer": block.il, "tensor": bank.tensor.name, "part": part, "n_expert": tier.n_expert,
                                     "n_used": n_used, "n_pairs": n_pairs} | counted)
        return rows

    def new_context(self, *, n_ctx, n_ubatch, Team team, swa_full=False):
        """A fresh timeline: see Context."""
        return Context(self, n_ctx, n_ubatch, team, swa_full)

    def kv_bytes(self, n_ctx, n_ubatch=None):
        """Bytes that a timeline of n_ctx positions in chunks of n_ubatch keeps: keys and values (n_ubatch None: all of them in
        layers with a window too), and the recurrent state with its copy."""
        return kv_bytes(self.sizes, n_ctx, n_ubatch) + 2 * 4 * self.sizes.n_recurrent

    def scratch_bytes(self, n_ctx, n_ubatch, n_threads):
        """Bytes of scratch for chunks of n_ubatch tokens on n_threads threads."""
        cdef Pass p
        return lay_out(self.sizes, &p, n_ctx, n_ubatch, n_threads, NULL)


cdef size_t lay_out(sizes, Pass *p, int64_t n_ctx, int64_t T, int n_threads, uint8_t *base) except? 0:
    """Places every buffer of a pass for T tokens from `base` on; returns the bytes needed."""
    cdef const moe_isa *isa = checked_isa()
    cdef size_t at = 0, E = sizes.n_embd, S = sizes.n_streams, scratch
    cdef int64_t group = max(T, <int64_t>sizes.group_pairs)
    cdef int64_t X = sizes.n_expert, A = sizes.n_expert_used, n_plan = min(T * A, X)
    cdef int f

    memset(p, 0, sizeof(Pass))
    p.isa = isa
    p.x = <float *>take(base, &at, T * E * 4)
    p.kept = <float *>take(base, &at, T * E * 4 if sizes.keeps else 0)
    p.norm = <float *>take(base, &at, T * E * 4)
    p.out = <float *>take(base, &at, T * E * 4)
    for f in range(MOE_X_COUNT):
        if sizes.formats >> f & 1:
            p.xq[f] = take(base, &at, T * moe_x_row_bytes(isa, f, E))
    p.q = <float *>take(base, &at, T * <size_t>sizes.n_q * 4)
    p.attn = p.q if sizes.n_q == sizes.n_attn else <float *>take(base, &at, T * <size_t>sizes.n_attn * 4)
    p.k = <float *>take(base, &at, T * <size_t>sizes.n_k * 4)
    p.v = <float *>take(base, &at, T * <size_t>sizes.n_v * 4)
    p.aq = take(base, &at, T * largest_row(isa, sizes.attn_rows))
    p.wide = <float *>take(base, &at, T * <size_t>sizes.n_wide * 4)
    p.latent_tokens = min(T, max(<int64_t>1, LATENT_ROWS // max(1, <int64_t>sizes.n_head)))
    p.latent_rows = <float *>take(base, &at, p.latent_tokens * <size_t>sizes.n_head * <size_t>sizes.n_latent * 4)
    p.latent_xq = take(base, &at, p.latent_tokens * <size_t>sizes.n_head * largest_row(isa, sizes.latent_rows))
    p.streams = <float *>take(base, &at, T * S * E * 4)
    p.mixes = <float *>take(base, &at, T * (2 + S) * S * 4)
    p.extra = take(base, &at, max([own(n_ctx, T, n_threads) for own in sizes.extra], default=0))
    p.hidden = <float *>take(base, &at, max(T * 2 * <size_t>sizes.n_ff, group * <size_t>sizes.n_ff_exp) * 4)
    p.hq = take(base, &at, max(T * largest_row(isa, sizes.ff_rows), group * largest_row(isa, sizes.ff_exp_rows)))
    p.gx = take(base, &at, group * <size_t>sizes.gather_formats * largest_row(isa, sizes.gather_rows))
    p.rope = <float *>take(base, &at, T * <size_t>sizes.n_rot * 4)
    p.route_probs = <float *>take(base, &at, T * X * 4)
    p.route_ids = <int32_t *>take(base, &at, T * A * 4)
    p.route_weights = <float *>take(base, &at, T * A * 4)
    p.shared_gate = <float *>take(base, &at, T * 4)
    p.plan.expert = <int32_t *>take(base, &at, n_plan * 4)
    p.plan.start = <int64_t *>take(base, &at, (n_plan + 1) * 8)
    p.plan.pair = <int32_t *>take(base, &at, T * A * 4)
    p.plan.count = <int64_t *>take(base, &at, X * 8)
    p.visit = <int32_t *>take(base, &at, n_plan * 4)
    p.guess_norm = <float *>take(base, &at, E * 4)
    p.guess_xq = take(base, &at, E * 8)      # no format takes more
    p.guess_probs = <float *>take(base, &at, X * 4)
    p.guess_ids = <int32_t *>take(base, &at, A * 4)
    p.guess_weights = <float *>take(base, &at, A * 4)
    scratch = max(isa.attn_scratch_bytes(Q_ROWS, sizes.head_dim_k, sizes.head_dim_v),
                  <size_t>X_CHUNK_ROWS * ROW_CHUNK * 4, E * 4)
    p.thread_scratch_bytes = (scratch + 4095) & ~<size_t>4095
    p.thread_scratch = take(base, &at, n_threads * p.thread_scratch_bytes)
    p.partials = <float *>take(base, &at, min(T, <int64_t>SPLIT_TOKENS) * <size_t>sizes.n_head
                               * ((n_ctx + MOE_KV_SEGMENT - 1) // MOE_KV_SEGMENT)
                               * moe_attn_partial_floats(sizes.head_dim_v) * 4)
    return at


cdef size_t largest_row(const moe_isa *isa, rows) except? 0:
    """Bytes of the largest activation row among (format, length) pairs; 0 for none."""
    cdef size_t largest = 0
    for f, n in rows:
        largest = max(largest, moe_x_row_bytes(isa, f, n))
    return largest


cdef struct Job:
    Pass *p
    int n_blocks
    block_fn *run
    void **state
    bint stop[2]                # whether to end after block i, at i & 1
    int at                      # block that is running


cdef void walk(void *arg, int ith, int nth) noexcept nogil:
    """All blocks; after a cancel or an error none but the one that is running. Member 0 decides before a
    block, and the barrier that every block ends with shows the others the same decision."""
    cdef Job *job = <Job *>arg
    cdef int i
    for i in range(job.n_blocks):
        if ith == 0:
            job.at = i
            job.stop[i & 1] = cancelled(job.p) or job.p.error
        job.run[i](job.state[i], job.p, ith, nth)
        if job.stop[i & 1]:
            return


cdef class Context:
    """One timeline over a Model: its KV cache, and scratch that it shares with others.

    n_ctx : int       positions the cache holds
    n_ubatch : int    tokens a chunk may have
    team : Team       threads that compute; taken by one forward pass at a time
    swa_full : bool   keys and values of layers with a sliding window are kept for all positions too

    Not safe for two calls at once; `cancel` may come from any thread.
    """
    cdef object __weakref__
    cdef readonly Model model
    cdef readonly Team team
    cdef readonly int64_t n_ctx, n_ubatch
    cdef readonly object trace        # int32 (n_moe_layers, T, A) of the last pass, or None
    cdef public bint record_routing
    cdef public int64_t alone_below   # multiplications; a smaller pass runs on the calling thread alone
    cdef Pass p
    cdef Job job
    cdef Region scratch               # shared with the other contexts of the team
    cdef size_t scratch_bytes
    cdef readonly KvCache kv
    cdef Region state                 # of the recurrent layers
    cdef readonly RecurrentState recurrent
    cdef int cancel_flag

    def __cinit__(self):
        self.job.run = NULL
        self.job.state = NULL

    def __init__(self, Model model, int64_t n_ctx, int64_t n_ubatch, Team team, bint swa_full=False):
        if n_ctx < 1:
            raise ConfigError(f"n_ctx: found {n_ctx}, expected 1 or more")
        if n_ubatch < 1:
            raise ConfigError(f"n_ubatch: found {n_ubatch}, expected 1 or more")
        self.alone_below = ALONE_BELOW
        self.model, self.team, self.n_ctx, self.n_ubatch = model, team, n_ctx, min(n_ubatch, n_ctx)
        self.scratch_bytes = lay_out(model.sizes, &self.p, n_ctx, self.n_ubatch, team.n_threads, NULL)
        self.scratch = scratch_of(team, self.scratch_bytes)
        lay_out(model.sizes, &self.p, n_ctx, self.n_ubatch, team.n_threads, self.scratch.base)
        self.kv = KvCache(model.sizes, n_ctx, None if swa_full else self.n_ubatch)
        self.p.kv[KV_WHOLE], self.p.kv[KV_WINDOW] = self.kv.tiles[KV_WHOLE], self.kv.tiles[KV_WINDOW]
        self.state = Region(max(64, 2 * 4 * model.sizes.n_recurrent), "the context")
        self.p.recurrent = <float *>self.state.base
        self.recurrent = RecurrentState.new(self.p.recurrent, model.sizes.n_recurrent)
        self.p.team, self.p.n_ctx = team.team, n_ctx
        self.p.cancel = &self.cancel_flag
        cdef int n = len(model.blocks)
        self.job.n_blocks, self.job.p = n, &self.p
        self.job.run = <block_fn *>malloc(n * sizeof(block_fn))
        self.job.state = <void **>malloc(n * sizeof(void *))
        if self.job.run == NULL or self.job.state == NULL:
            raise MemoryError
        cdef Block block
        for i, b in enumerate(model.blocks):
            block = b
            self.job.run[i], self.job.state[i] = block.run, block.state

    def __dealloc__(self):
        free(self.job.run)
        free(self.job.state)

    def forward(self, const int32_t[::1] tokens, int64_t n_past, str outputs="last", float[:, ::1] logits=None):
        """Compute one chunk and append it to the timeline after n_past tokens.

        Parameters
        ----------
        tokens : int32 (T,)       0 <= id < n_vocab; 1 <= T <= n_ubatch
        n_past : int              tokens of the timeline that are kept
        outputs : {"last", "all", "none"}
        logits : float32 (1 or T, n_vocab) or None     written for the positions asked

        Raises
        ------
        ConfigError           an id or a shape out of range
        ContextOverflowError  n_past + T > n_ctx
        CancelledError        cancel() was called meanwhile; positions before n_past stay valid
        NumericError          NaN or infinity in a router or in an expert's output
        SupplyError           expert bytes could not be brought in
        """
        cdef int64_t T = tokens.shape[0], V = self.model.hparams.n_vocab, t, n_out
        if T < 1 or T > self.n_ubatch:
            raise ConfigError(f"tokens: found {T}, expected 1 to {self.n_ubatch} in one chunk")
        if n_past < 0:
            raise ConfigError(f"n_past: found {n_past}, expected 0 or more")
        if n_past + T > self.n_ctx:
            raise ContextOverflowError(f"{n_past} + {T} tokens do not fit the context of {self.n_ctx}")
        for t in range(T):
            if tokens[t] < 0 or tokens[t] >= V:
                raise ConfigError(f"token id {tokens[t]} at position {n_past + t}: expected 0 to {V - 1}")
        if outputs not in OUTPUTS:
            raise ConfigError(f"outputs: found {outputs!r}, expected one of {', '.join(OUTPUTS)}")
        self.p.output = OUTPUTS[outputs]
        if self.p.output != OUTPUT_NONE:
            n_out = T if self.p.output == OUTPUT_ALL else 1
            if logits is None or logits.shape[0] != n_out or logits.shape[1] != V:
                raise ConfigError(f"logits: expected float32 ({n_out}, {V})")
            self.p.logits = &logits[0, 0]
        self.p.tokens, self.p.n_tokens, self.p.n_past = &tokens[0], T, n_past
        self.p.error = 0
        self.trace_buffer(T)
        self.kv.begin(n_past, T)
        self.recurrent.begin(n_past, T)
        self.job.at = 0
        cdef bint alone = self.model.sizes.weights_per_token * T < self.alone_below
        if T <= CROWDED_TOKENS and not self.model.has_readers and team_is_crowded(self.p.team):
            alone = True
        with nogil:
            if alone:
                team_run_alone(self.p.team, walk, &self.job)
            else:
                team_run(self.p.team, walk, &self.job)
        if self.cancel_flag:
            self.cancel_flag = 0
            raise CancelledError(f"cancelled; {n_past} tokens of the timeline are kept")
        if self.p.error:
            raise self.failure()
        self.recurrent.end(n_past + T)
        self.kv.end(n_past + T)

    def n_ready(self, int64_t n_past):
        """How many of the first n_past tokens need not be computed again before a chunk can follow them: all, unless a
        recurrent state is of other tokens or keys of a sliding window are gone."""
        cdef int64_t n = self.kv.n_ready(self.recurrent.n_ready(n_past))
        while n < n_past:
            n_past, n = n, self.kv.n_ready(self.recurrent.n_ready(n))
        return n

    def trace_buffer(self, T):
        """Makes room for the routing of T tokens where it is asked for."""
        cdef int32_t[:, :, ::1] view
        self.p.trace, self.trace = NULL, None
        if self.record_routing and self.model.moe_blocks:
            self.trace = np.empty((len(self.model.moe_blocks), T, self.model.hparams.n_expert_used), np.int32)
            view = self.trace
            self.p.trace = &view[0, 0, 0]

    def failure(self):
        """The exception for the error that the last pass left behind."""
        where = f"layer {self.p.error_layer}"
        if self.p.error_expert >= 0:
            where += f", expert {self.p.error_expert}"
        path = self.model.file.files[0].path
        if self.p.error == PASS_NAN_ROUTER:
            return NumericError(f"{path}: {where}: the router's logits hold NaN or infinity")
        if self.p.error == PASS_NAN_EXPERT:
            return NumericError(f"{path}: {where}: NaN or infinity in the expert's output; "
                                "`info --check` names damaged tensors")
        if self.model.supply is not None:
            reason = self.model.supply.failure(self.p.error_layer, self.p.error_expert)
            if reason:
                return SupplyError(f"{where}: {reason}")
        return SupplyError(f"{path}: {where}: the expert's bytes could not be read")

    def cancel(self):
        """Stop the forward pass that is running, from any thread; without one, the next."""
        self.cancel_flag = 1

    @property
    def fraction_done(self):
        """How much of the pass that is running is done, 0 to 1; for progress, from any thread."""
        return self.job.at / max(1, self.job.n_blocks)

    @property
    def memory_bytes(self):
        """dict: bytes reserved for the KV cache and for scratch, which contexts of a team share; touched pages are what
        counts."""
        return {"kv": self.kv.region.n_bytes + self.recurrent.n * 8, "scratch": self.scratch_bytes}

    def kv_state(self, int64_t n_past):
        """What the timeline keeps of its first n_past tokens, for which it must be ready: a copy, uint16 (n,). Keys and values as
        F16 bits (KvCache.state); then the recurrent state, where there is one: halves of float32.

        ConfigError    the timeline is of other tokens
        """
        if self.n_ready(n_past) != n_past:
            raise ConfigError(f"n_past: found {n_past}, expected {self.n_ready(n_past)}, the tokens of the timeline's state")
        parts = self.kv.state(n_past)
        if n_past and self.recurrent.n:
            if self.recurrent.n_live != n_past:
                self.recurrent.take_kept()
            parts.append(self._recurrent_values())
        return np.concatenate([part.reshape(-1) for part in parts] or [np.empty(0, np.uint16)])

    def set_kv_state(self, state, int64_t n_past):
        """Put back what `kv_state` gave. ConfigError when the size does not fit."""
        n_recurrent = 2 * self.recurrent.n if n_past else 0
        n_kv = self.kv.n_state(n_past) if 0 <= n_past <= self.n_ctx else 0
        if not 0 <= n_past <= self.n_ctx or state.size != n_kv + n_recurrent:
            raise ConfigError(f"KV state: found {state.size} values for {n_past} positions, expected {n_kv + n_recurrent} and at "
                              f"most {self.n_ctx} positions")
        if n_recurrent:
            self._recurrent_values()[:] = state[n_kv:]
        self.recurrent.replaced(n_past)
        self.kv.set_state(state, n_past)

    def _recurrent_values(self):
        """The recurrent state as a writable view, uint16 (2 n,)."""
        cdef uint16_t[::1] view = <uint16_t[:2 * self.recurrent.n]><uint16_t *>self.p.recurrent
        return np.asarray(view)
