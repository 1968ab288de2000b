"""The scheduler of vLLM V1, by default settings.

read: vLLM 0.33.0, v1/core/sched/scheduler.py `Scheduler.schedule`; v1/core/kv_cache_manager.py `get_computed_blocks`,
`allocate_slots`. Not modelled: preemption and the size of the cache, priorities, `long_prefill_token_threshold`, the
extra step of a request whose end is noticed late (asynchronous scheduling), and where the model runner puts a row in
its batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from moeparity.plan.schedule.server import Part, Request, Server
from moeparity.plan.schedule.steps import Copy


class VllmV1(Server):
    """Running requests first, in the order of their arrival, then new ones, all in one step within a token budget."""

    def parts(self) -> list[Part]:
        """What the next step computes. A prompt is cut where the budget ends; waiting requests join while budget and
        room are left.
        """
        budget = self._budget
        parts: list[Part] = []
        for request in self.running:
            if budget <= 0:
                break
            tokens = min(request.tokens_left or self.decoded(request), budget)
            parts.append(self._part(request, tokens, ()))
            budget -= tokens
        while budget > 0 and self.has_arrived and self.has_room:
            request = self.waiting.popleft()
            self.running.append(request)
            copies = self.hits(request)
            request.computed = sum(copy.last - copy.first for copy in copies)
            tokens = min(request.tokens_left, budget)
            parts.append(self._part(request, tokens, copies))
            budget -= tokens
        return parts

    def computed(self, part: Part) -> None:
        """Nothing to do: `_part` has put the blocks into the cache already."""

    @property
    def _budget(self) -> int:
        everything = self.grid.sequences * self.grid.length
        return everything if self.settings.chunk is None else self.settings.chunk

    def _part(self, request: Request, tokens: int, copies: Sequence[Copy]) -> Part:
        """A part, whose blocks go into the cache at once, so that a later request of the same step finds them; drafted
        tokens are left out.
        """
        if self.cache is not None:
            needed_tokens = max(request.prompt, request.computed + 1)
            self.cache.store(request.sequence, min(request.computed + tokens, needed_tokens))
        return Part(request, request.computed, tokens, copies)
