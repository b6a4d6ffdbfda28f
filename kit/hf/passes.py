"""Passes: hooks around each forward pass of a transformers model, for its trace and its threads."""

import time

import torch

from kit.hf.stored import Source
from kit.model.linear import GEMV_MAX_TOKENS


class Passes:
    """Hooks before and after each pass.

    A pass of few tokens runs on the kit's threads, so torch is limited to one thread meanwhile: its idle threads would spin.
    ``trace.token`` is 0 for a prompt and counts the tokens decoded after it. ``forget``: clear the trace at each pass, for a
    model whose user gave no trace.
    """

    def __init__(self, source: Source, forget: bool = False):
        self.trace, self._own, self._forget = source.weights.trace, source.linear.own_threads, forget
        self._start, self._threads = 0, None

    def listen(self, model: torch.nn.Module) -> None:
        """Register the hooks on ``model``."""
        model.register_forward_pre_hook(self.before, with_kwargs=True)
        model.register_forward_hook(self.after, always_call=True)

    @torch.compiler.disable
    def before(self, model, args, kwargs):
        """Count the token, limit torch's threads."""
        past, state = kwargs.get("past_key_values"), kwargs.get("cache_params")  # of attention; of models such as Mamba
        ids = kwargs.get("input_ids", args[0] if args else None)
        continues = (past is not None and past.get_seq_length() > 0) or (state is not None and state.has_previous_state())
        if self._forget:
            self.trace.clear()
        self.trace.token = self.trace.token + 1 if continues else 0
        if self._own and ids is not None and ids.numel() <= GEMV_MAX_TOKENS:
            self._threads = torch.get_num_threads()
            torch.set_num_threads(1)
        self._start = time.perf_counter_ns()

    @torch.compiler.disable
    def after(self, model, args, output):
        """Add a span for the pass, restore torch's threads."""
        self.trace.add("token", self._start, time.perf_counter_ns())
        if self._threads:
            torch.set_num_threads(self._threads)
            self._threads = None
