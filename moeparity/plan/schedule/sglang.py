"""The scheduler of SGLang, by default settings.

read: sglang 0.5.23, srt/managers/scheduler.py `get_next_batch_to_run`, `_get_new_batch_prefill_raw`;
srt/managers/schedule_policy.py `PrefillAdder`. Not modelled: the size of the cache and requests that are delayed when
it is full, `enable_mixed_chunk`, policies other than first come first served, and that overlapped scheduling learns of
a finished request, and of the blocks of a step, one step late.
"""

from __future__ import annotations

from typing import Final

from moeparity.plan.schedule.server import Part, Server
from moeparity.plan.schedule.settings import ScheduleSettings
from moeparity.plan.schedule.token_grid import TokenGrid

MAX_PREFILL_TOKENS: Final = 16384
"""With this many tokens a step takes no further prompt (`max_prefill_tokens`); a single prompt may be longer."""


class SGLang(Server):
    """Prompts first: as many as fit into a chunk, the last one cut. Without waiting prompts, one token (or the drafted
    ones) of every running request.
    """

    def __init__(self, settings: ScheduleSettings, grid: TokenGrid) -> None:
        super().__init__(settings, grid)
        self.page = settings.block or 1
        # SGLang refuses a chunk that is no multiple of the page; here only a mixture of two schedules can have one.
        self.chunk = None if settings.chunk is None else max(settings.chunk // self.page, 1) * self.page

    def parts(self) -> list[Part]:
        """What the next step computes; prompts and decoding are never in one step."""
        prompts = self._prompts()
        return prompts or [Part(request, request.computed, self.decoded(request)) for request in self.running]

    def computed(self, part: Part) -> None:
        """Put a part into the prefix cache: prompts after their step, decoded tokens once the request is done."""
        if self.cache is not None and (part.is_prompt or part.request.is_done):
            self.cache.store(part.request.sequence, part.request.computed)

    def _prompts(self) -> list[Part]:
        """The rest of the prompt that was cut, then new prompts. The token budget is counted in whole pages."""
        parts = [
            Part(
                request,
                request.computed,
                request.tokens_left if self.chunk is None else min(request.tokens_left, self.chunk),
            )
            for request in self.running
            if request.tokens_left
        ]
        charged = sum(self._paged(part.tokens) for part in parts)
        while charged < self._budget and self.has_arrived and self.has_room:
            copies = self.hits(self.waiting[0])
            there = sum(copy.last - copy.first for copy in copies)
            tokens = self._admitted(self.waiting[0].prompt - there, charged, is_first=not parts)
            if not tokens:
                break
            request = self.waiting.popleft()
            self.running.append(request)
            parts.append(Part(request, there, tokens, copies))
            charged += self._paged(tokens)
        return parts

    @property
    def _budget(self) -> int:
        return MAX_PREFILL_TOKENS if self.chunk is None else min(self.chunk, MAX_PREFILL_TOKENS)

    def _admitted(self, tokens: int, charged: int, *, is_first: bool) -> int:
        """How many of a prompt's tokens go into this step; 0 where it has to wait."""
        if self.chunk is None:
            return tokens if is_first or self._paged(tokens) < MAX_PREFILL_TOKENS - charged else 0
        rest = self.chunk - charged
        return tokens if self._paged(tokens) <= rest else rest // self.page * self.page

    def _paged(self, tokens: int) -> int:
        return -(-tokens // self.page) * self.page
