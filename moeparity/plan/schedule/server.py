"""What the schedulers of servers have in common: requests that wait, run and finish, and flat steps made of them.

At first only the prompt of a request is known; every step that computes its last known token makes one more token
known, and with verification as many more as were drafted. A sequence's last token is sampled but not computed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from moeparity.plan.schedule.prefixes import PrefixCache
from moeparity.plan.schedule.settings import ScheduleSettings
from moeparity.plan.schedule.steps import Copy, Phase, Span, Step
from moeparity.plan.schedule.token_grid import StepList, TokenGrid
from moeparity.plan.schedule.updates import update_columns


@dataclass(slots=True, kw_only=True)
class Request:
    """A sequence as a server sees it. `prompt`, `total` and `computed` are numbers of tokens: in the prompt, to compute
    in all, and computed so far. `arrival` is the step at which it arrives.
    """

    sequence: int
    arrival: int
    prompt: int
    total: int
    computed: int = 0

    @property
    def tokens_left(self) -> int:
        """How many tokens of the prompt are not computed yet."""
        return max(self.prompt - self.computed, 0)

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to compute."""
        return self.computed >= self.total


class Part(NamedTuple):
    """What one step computes of one request: `tokens` tokens from token `start` on; `copies` came from the cache."""

    request: Request
    start: int
    tokens: int
    copies: Sequence[Copy] = ()

    @property
    def is_prompt(self) -> bool:
        """Whether these are tokens of the prompt."""
        return self.start < self.request.prompt

    @property
    def is_whole(self) -> bool:
        """Whether these are all tokens of the prompt."""
        return self.start == 0 and self.tokens >= self.request.prompt


class Server(ABC):
    """One server's scheduler at work. Requests are served in the order in which they come."""

    def __init__(self, settings: ScheduleSettings, grid: TokenGrid) -> None:
        self.settings, self.grid = settings, grid
        updates = update_columns(settings, grid) if settings.keyed else None
        self.cache = None if settings.block is None else PrefixCache(grid, settings.block, updates)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.clock = 0

    @abstractmethod
    def parts(self) -> list[Part]:
        """What the next step computes of the requests that have arrived; empty where there is nothing to do."""

    @abstractmethod
    def computed(self, part: Part) -> None:
        """Called after a step for each of its parts, so that a scheduler can fill its cache."""

    def serve(self, sequences: Sequence[int], steps: StepList) -> None:
        """Add steps until all of these sequences are done."""
        requests = [self._request(sequence) for sequence in sequences if self.grid.tokens(sequence)]
        self.waiting.extend(sorted(requests, key=lambda request: request.arrival))
        self.clock = 0
        while self.waiting or self.running:
            parts = self.parts()
            if not parts:
                self.clock = max(self.clock + 1, self.waiting[0].arrival)
                continue
            steps.add(self._step(parts))
            for part in parts:
                part.request.computed = part.start + part.tokens
                self.computed(part)
            self.running = [request for request in self.running if not request.is_done]
            self.clock += 1

    @property
    def has_arrived(self) -> bool:
        """Whether a waiting request has arrived."""
        return bool(self.waiting) and self.waiting[0].arrival <= self.clock

    @property
    def has_room(self) -> bool:
        """Whether one more request may run."""
        return self.settings.sequences is None or len(self.running) < self.settings.sequences

    def hits(self, request: Request) -> list[Copy]:
        """What the cache has of a prompt, without its last token: that is always computed, since the next token is
        sampled from its logits.
        """
        return [] if self.cache is None else self.cache.hits(request.sequence, request.prompt - 1)

    def decoded(self, request: Request) -> int:
        """How many tokens the next step computes of a request whose prompt is done."""
        return min(1 + self.settings.verify, request.total - request.computed)

    def _request(self, sequence: int) -> Request:
        start, tokens = self.settings.start, self.grid.tokens(sequence)
        prompt = self.grid.prompt_end(sequence, start) - self.grid.spans[sequence][0]
        return Request(
            sequence=sequence,
            arrival=self.settings.arrivals[sequence] if self.settings.arrivals else 0,
            prompt=prompt,
            total=tokens if start is None else max(prompt, tokens - 1),
        )

    def _step(self, parts: Sequence[Part]) -> Step:
        spans = tuple(self._span(part) for part in parts)
        phase = _phase(parts)
        is_mixed = self.settings.start is not None and phase in ("prefill", "chunk")
        drafted = (place for place, part in enumerate(parts) if not part.is_prompt and part.tokens > 1)
        return Step(
            spans=spans,
            shape="flat",
            phase=phase,
            padding=self._padding(spans) if phase in ("decode", "verify") else 0,
            scored=tuple(range(len(parts))) if is_mixed else None,
            verified=tuple(drafted) if is_mixed else (),
            copies=tuple(copy for part in parts for copy in part.copies),
        )

    def _span(self, part: Part) -> Span:
        first = self.grid.spans[part.request.sequence][0] + part.start
        return Span(part.request.sequence, first, first + part.tokens)

    def _padding(self, spans: Sequence[Span]) -> int:
        rows = sum(span.tokens for span in spans)
        return next((size - rows for size in self.settings.buckets if size >= rows), 0)


def _phase(parts: Sequence[Part]) -> Phase:
    """The phase of a step. With prompts in it, it is `prefill` if all of it are whole prompts, else `chunk`."""
    if not any(part.is_prompt for part in parts):
        return "verify" if any(part.tokens > 1 for part in parts) else "decode"
    return "prefill" if all(part.is_prompt and part.is_whole for part in parts) else "chunk"
