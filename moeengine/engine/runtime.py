"""What the sessions of one Engine share: weights, team of threads, tokenizer, counters.

`forward` is the only way to the compiled model: one pass at a time over the team, interruptible.
"""

import dataclasses
import functools
import logging
import time
import weakref

from moeengine import graph
from moeengine.config import N_CTX_DEFAULT, N_UBATCH_DEFAULT
from moeengine.engine.blas import BlasLimit
from moeengine.engine.turns import Call, Cancellations, Turns, run_interruptibly
from moeengine.errors import CancelledError, ClosedError, ConfigError, GGUFError, SupplyError
from moeengine.kernels.table import isa
from moeengine.kernels.threads import Team
from moeengine.loader.expert_map import check_map
from moeengine.loader.model_file import ModelFile
from moeengine.loader.model_info import kv_bytes_per_token, recurrent_bytes
from moeengine.machine import address_space_limit, default_n_threads
from moeengine.stats import Counters
from moeengine.supply import unused_settings
from moeengine.supply.budget import resident_bytes
from moeengine.supply.choice import Demand, dense_policy, room_for, supply_for
from moeengine.supply.dense import apply_dense_policy, dense_bytes
from moeengine.supply.probe import page_cache_share
from moeengine.supply.read_ahead import ReadAhead
from moeengine.supply.recorded import experts_by_use
from moeengine.supply.release import release_mapping

logger = logging.getLogger("moeengine")
node_logger = logging.getLogger("moeengine.nodes")  # a line for every expert tensor of every pass

LONG_STEP_S = 0.1  # a pass shorter than this may delay Ctrl-C; a thread for each would cost more


class Runtime:
    """A loaded model at work. Holds no session, so that dropping the Engine frees everything.

    model_file : ModelFile
    model : graph Model
    team : kernels.threads.Team
    config : EngineConfig
    supply, choice : ExpertSupply bound to the model, supply.choice.Choice that led to it; or None
    """

    def __init__(self, model_file, model, team, config, supply=None, choice=None):
        self.model_file = model_file
        self.model = model
        self.team = team
        self.config = config
        self.supply, self.choice = supply, choice
        self.hparams = model.hparams
        self.n_ctx = config.n_ctx or min(self.hparams.n_ctx_train, N_CTX_DEFAULT)
        self.counters = Counters()
        self.cancellations = Cancellations()
        self.blas = BlasLimit()
        self.is_closed = False
        self.routing_callback = None
        self._sessions = weakref.WeakValueDictionary()  # id -> Session
        self._turns = Turns()  # of the team
        self._running = None  # the context in a forward pass
        self._last_step_s = LONG_STEP_S
        self._tokenizer = None
        self._chat_template = None
        self.n_ubatch = (choice and choice.n_ubatch) or config.n_ubatch or N_UBATCH_DEFAULT
        self._contexts = weakref.WeakSet()  # that have run, where their memory is bounded
        self.release_of_mapping = None  # what came of config.release_mmap
        self.read_ahead = None  # a ReadAhead at work or done
        if self.n_ctx > self.hparams.n_ctx_train:
            logger.warning(
                "n_ctx is %d; the model was trained for %d and may degrade past that",
                self.n_ctx,
                self.hparams.n_ctx_train,
            )

    @classmethod
    def load(cls, model_path, config):
        """Open and check the file, resolve every tensor, make the team.

        Raises
        ------
        GGUFError, UnsupportedError, ConfigError, SupplyError, OSError
        """
        before = resident_bytes()
        model_file = ModelFile.open(model_path)
        try:
            if config.expert_map is not None:
                check_map(config.expert_map, model_file)
            room, share = room_for(config, before=before), page_cache_share(model_file)
            policy = dense_policy(model_file, dense_bytes(model_file), _kv_bytes(model_file, config), config, room)
            config = dataclasses.replace(config, dense_weights=policy)
            apply_dense_policy(model_file, policy)
            model = graph.load_model(model_file, n_expert_used=config.n_expert_used)
            team = Team(config.n_threads or default_n_threads())
            supply, choice = _supply(model_file, model, team, config, before, share)
            runtime = cls(model_file, model, team, config, supply, choice)
            runtime._check_mapping()
            if choice.reads_ahead:
                runtime.read_ahead = ReadAhead(model_file)
            if config.release_mmap:
                runtime.release_mapping()
            return runtime
        except BaseException:
            model_file.close()
            raise

    def release_mapping(self):
        """Give up the file's mapping where no weight is read from it; said in the log and in `stats`."""
        found = self.release_of_mapping = release_mapping(self.model_file, self.model)
        tell = logger.info if found.done else logger.warning
        tell("release_mmap: %s: %s", "mapping given up" if found.done else "declined", found.why)

    def new_call(self, *cancellations):
        self.check_open()
        return Call(self.cancellations, *cancellations)

    def new_context(self, session, n_ctx):
        """Graph context of `session`: its KV cache and scratch memory."""
        self.check_open()
        n_ubatch = min(self.n_ubatch, n_ctx)
        try:
            context = self.model.new_context(n_ctx=n_ctx, n_ubatch=n_ubatch, team=self.team, swa_full=self.config.swa_full)
        except MemoryError as error:
            limit = address_space_limit()
            raise MemoryError(f"{error}; {limit}" if limit else str(error)) from None
        self._sessions[id(session)] = session
        return context, n_ubatch

    def forward(self, context, tokens, n_past, outputs, logits, call, tick=None):
        """One chunk through the model.

        Parameters
        ----------
        context : graph Context
        tokens : int32 (T,)          1 <= T <= n_ubatch
        n_past : int                 tokens of the context that stay
        outputs : {"last", "all", "none"}
        logits : float32 (1 or T, V) written according to `outputs`
        call : Call
        tick : callable              called now and then meanwhile, where this is the main thread

        Raises
        ------
        CancelledError               the context holds its first n_past tokens
        ClosedError, NumericError

        Returns
        -------
        bool                         False: nothing was computed, and the context must be made ready first (n_ready)
        """
        work = functools.partial(context.forward, tokens, n_past, outputs, logits)
        with self._turns.take(call):
            self._admit(context)
            self._running = context
            try:
                return self._run(work, context, n_past, len(tokens), call, tick)
            finally:
                self._running = None

    def _admit(self, context):
        """ConfigError where a memory budget has no room for the first pass of one more session."""
        if self.config.memory_budget is None or self.choice is None or context in self._contexts:
            return
        memory = [c.memory_bytes for c in self._contexts]
        scratch = max((m["scratch"] for m in memory), default=0)
        taken = scratch + sum(m["kv"] for m in memory)
        needed = context.memory_bytes["kv"] + max(0, context.memory_bytes["scratch"] - scratch)
        if taken + needed > self.choice.context_bytes and taken:
            raise ConfigError(
                f"memory_budget: found {self.choice.context_bytes / 1e6:.0f} MB for sessions, of which {taken / 1e6:.0f} "
                f"are in use, expected {needed / 1e6:.0f} more for another; close one, or give it a smaller n_ctx"
            )
        self._contexts.add(context)

    def _run(self, work, context, n_past, n_tokens, call, tick):
        start = time.perf_counter()
        while True:
            # after _running is set: a cancel() either is seen here or reaches the context
            self.check_open()
            if call.is_cancelled():
                raise CancelledError("cancelled")
            try:
                try:
                    if n_tokens > 1 or self._last_step_s >= LONG_STEP_S:
                        run_interruptibly(work, context.cancel, call, tick)
                    else:
                        work()
                finally:
                    self._check_mapping()
                break
            except CancelledError:
                if call.is_cancelled():
                    raise
                # meant for a pass that ended just before
                if context.n_ready(n_past) < n_past:
                    return False
        seconds = time.perf_counter() - start
        if n_tokens == 1:
            self._last_step_s = seconds
        self.counters.count_forward(n_tokens, seconds)
        if self.config.moe_stats:
            self._log_nodes(n_tokens)
        return True

    def _check_mapping(self):
        """SupplyError where weights read as zeros because the mapped file had lost their bytes."""
        missing = self.model_file.take_missing() if self.model_file is not None else ""
        if missing:
            raise SupplyError(missing)

    def _log_nodes(self, n_tokens):
        """A line for every expert tensor of the pass that has just ended."""
        if self.supply is None or not node_logger.isEnabledFor(logging.INFO):
            return
        for row in self.model.nodes():
            node_logger.info(
                "layer %d %s (%s): %d tokens, %d of %d experts used, %d bytes read, %d advised, %d dropped, waited %.3f ms",
                row["layer"], row["tensor"], row["part"], n_tokens, row["n_used"], row["n_expert"],
                row["bytes_read"], row["bytes_advised"], row["bytes_dropped"], 1e3 * row["wait_s"],
            )  # fmt: skip

    def cancel(self, context=None):
        """End the calls of all sessions, or of the one with `context`, soon."""
        if context is None:
            self.cancellations.n += 1
        running = self._running
        if running is not None and context in (None, running):
            running.cancel()

    def check_open(self):
        if self.is_closed:
            raise ClosedError("engine: found it closed, expected it open")

    def tokenizer(self):
        """The model's tokenizer, made at first use: token ids alone do not need one.

        Raises
        ------
        UnsupportedError, GGUFError
        """
        self.check_open()
        if self._tokenizer is None:
            from moeengine.tokenizer import Tokenizer

            self._tokenizer = Tokenizer.from_gguf(self.model_file, force_pre=self.config.force_pre)
        return self._tokenizer

    def stats(self):
        """Plain values: settings, model, machine, counters."""
        hp = self.hparams
        return {
            "n_ctx": self.n_ctx,
            "n_threads": self.team.n_threads,
            "moe_mode": self.choice.mode if self.choice else "mmap",
            "dense_weights": self.config.dense_weights,
            "moe_mode_why": self.choice.why if self.choice else "",
            "mapping_released": self.release_of_mapping.done if self.release_of_mapping else False,
            "isa": isa()["active"],
            "arch": hp.arch,
            "n_layer": hp.n_layer,
            "n_embd": hp.n_embd,
            "n_vocab": hp.n_vocab,
            "n_expert": hp.n_expert,
            "n_expert_used": hp.n_expert_used,
            "is_lossy": self.config.n_expert_used is not None or self.config.drop_cold_experts > 0,
            "file_bytes": self.model_file.total_bytes,
            **self.counters.as_dict(),
            **self._supply_stats(),
        }

    def _supply_stats(self):
        """What the supply did, a phase: its own counters, and the rest of the phase's time as compute."""
        if self.supply is None:
            return {}
        phases = self.supply.phases()
        for name, phase in phases.items():
            phase["wait_s"] /= self.team.n_threads  # the supply sums over the threads that wait
            seconds = getattr(self.counters, f"{name}_s")
            phase["compute_s"] = max(0.0, seconds - phase["wait_s"] - phase["upkeep_s"])
        dropped = sum(block.n_dropped for block in self.model.moe_blocks)
        return {"supply": phases | self.supply.stats() | {"n_dropped": dropped}}

    def chat_template(self, source=None):
        """The ChatTemplate of a Jinja2 text, or of the model file; made at first use.

        Raises
        ------
        ConfigError          the file has none, or it is not valid
        UnsupportedError     there is no tokenizer for it
        """
        from moeengine.tokenizer.chat import ChatTemplate

        tokenizer = self.tokenizer()
        if source is not None:
            return ChatTemplate(source, tokenizer)
        if self._chat_template is None:
            self._chat_template = ChatTemplate.from_gguf(self.model_file, tokenizer)
        return self._chat_template

    def close(self):
        """End all calls, wait for the pass at work, free everything. Again: nothing."""
        if self.is_closed:
            return
        self.is_closed = True
        self.cancel()
        for session in self._live_sessions():
            session.close()
        self.release()

    def _live_sessions(self):
        """A list of them; sessions may come and go in other threads meanwhile."""
        sessions = [ref() for ref in self._sessions.valuerefs()]
        return [s for s in sessions if s is not None]

    def release(self):
        """After close: let go of the model once no session is at work any more."""
        if not self.is_closed or any(s.has_context for s in self._live_sessions()):
            return
        model_file, self.model_file = self.model_file, None
        if self.read_ahead is not None:
            self.read_ahead.close()
        if self.supply is not None:
            self.supply.close()
        self.model = self.team = self._tokenizer = self._chat_template = None
        if model_file is not None:
            model_file.close()


def _kv_bytes(model_file, config):
    """Bytes of one session's KV cache, before the model is built; 0 where the file does not say."""
    try:
        n_ctx_train = model_file.get_int(f"{model_file.architecture}.context_length", N_CTX_DEFAULT, lo=0)
        return (kv_bytes_per_token(model_file) * (config.n_ctx or min(n_ctx_train, N_CTX_DEFAULT))
                + recurrent_bytes(model_file))
    except GGUFError:
        return 0  # building the model says what is wrong with it


def _supply(model_file, model, team, config, before, share):
    """Choose and bind the supply of a model just loaded; says what and why in the log."""
    model_at = model.located()
    n_ctx = config.n_ctx or min(model.hparams.n_ctx_train, N_CTX_DEFAULT)

    def demand_of(n_ubatch):
        return Demand(
            experts=model_at.expert_bytes,
            dense=model_file.tensor_bytes - model_at.expert_bytes,
            kv=model.kv_bytes(n_ctx, None if config.swa_full else n_ubatch),
            scratch=model.scratch_bytes(n_ctx, n_ubatch, team.n_threads),
        )

    supply, choice = supply_for(model_at, config, demand_of, n_ctx, before, share)
    logger.info("%s", choice.why)
    for name in unused_settings(choice.mode, config):
        logger.warning("%s: means nothing in mode %s, which is in use", name, choice.mode)
    model.set_supply(supply, config.prefetch_layers)
    for block in model.moe_blocks:
        block.set_drop_below(config.drop_cold_experts)
    if config.warm_experts is not None:
        experts = experts_by_use(config.warm_experts, "warm_experts")
        _check_experts(config.warm_experts, experts, model_at)
        n = supply.warm(experts)
        logger.info("%s: %d experts read into the cache", config.warm_experts, n)
    return supply, choice


def _check_experts(path, experts, model_at):
    """ConfigError where a file names an expert that the model does not have. experts : list of (il, ie)"""
    counts = {layer.il: sum(tier.n_expert for tier in layer.tiers) for layer in model_at.layers}
    for il, ie in experts:
        if not 0 <= ie < counts.get(il, 0):
            raise ConfigError(
                f"warm_experts: {path}: found expert {ie} of layer {il}, expected those of this model; "
                "the file is of another one"
            )
