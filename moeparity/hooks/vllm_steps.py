"""The steps of vLLM as a recipe's `schedule: {file: ...}` has them, with their tokens as its token file has them.

The engine's core writes both. It takes the order of a step's rows, and how many pad them, from what the first worker
writes before it computes the step: the scheduler's order is another one. Read: vLLM 0.32.0,
vllm/v1/core/sched/scheduler.py `update_from_output`, vllm/v1/core/sched/output.py, vllm/v1/worker/gpu_model_runner.py.
"""

from __future__ import annotations

import atexit
import contextlib
import json
from array import array
from collections.abc import Iterator, Mapping
from typing import Any, TextIO, TypedDict

from moeparity.hooks import files
from moeparity.hooks.vllm_arguments import label
from moeparity.hooks.vllm_sequences import Prefixes, Sequence, request_of, sampling_of

MOST_STEPS = 100_000
"""As many as a recipe may have. Then nothing more is written."""
MOST_TOKENS = 16_000_000
_HELD = "_moeparity_steps"
_ENDS = {"steps": "schedule.jsonl", "tokens": "tokens.jsonl", "rows": "rows.jsonl"}


class StepRows(TypedDict):
    """A step's requests in the order of their rows: so many tokens of each, from a position on; then rows that pad."""

    requests: list[str]
    starts: list[int]
    tokens: list[int]
    padding: int


class Rows:
    """The rows of one worker's steps, as its runner lays them out. The first worker writes them where there is a folder
    for them.
    """

    def __init__(self, runner: Any) -> None:
        config = runner.vllm_config
        self.file: TextIO | None = None
        if config.parallel_config.rank == 0 and files.folder() is not None:
            self.file = files.appended(f"{label(config)}.{_ENDS['rows']}")
        self.step: StepRows | None = None

    def begin(self, requests: list[str], starts: list[int], tokens: list[int]) -> None:
        """The rows of a step: so many tokens of each request, from a position on."""
        self.step = {"requests": list(requests), "starts": starts, "tokens": tokens, "padding": 0}

    def end(self, rows: int) -> StepRows | None:
        """The whole step, which has so many rows, those that pad included; None where no step began."""
        step, self.step = self.step, None
        if step is not None:
            step["padding"] = max(int(rows) - sum(step["tokens"]), 0)
            if self.file is not None:
                files.line(self.file, step)
        return step


class Steps:
    """What the core writes of one scheduler's steps. After a step that it cannot follow it says so and stops."""

    def __init__(self, scheduler: Any) -> None:
        self.name = label(scheduler.vllm_config)
        self.mode = str(scheduler.vllm_config.model_config.logprobs_mode)
        self.weights = "default"
        self.is_open = True
        self.steps, self.tokens = (files.appended(f"{self.name}.{_ENDS[kind]}") for kind in ("steps", "tokens"))
        self.rows: TextIO | None = None
        self.prefixes = Prefixes(int(scheduler.block_size))
        self.running: dict[str, Sequence] = {}
        self.waiting_lines: dict[int, dict[str, Any]] = {}
        self.sequences = self.lines = self.count = self.size = 0
        atexit.register(self.close)

    def see(self, scheduled: Any, ran: Any, outputs: Mapping[int, Any]) -> None:
        """Write a step that is over, and the sequences that ended with it."""
        if not self.is_open:
            return
        try:
            self._step(scheduled, ran, {o.request_id: o for group in outputs.values() for o in group.outputs})
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            files.line(self.steps, {"error": f"the plugin could not follow the engine here: {reason}"})
            self.close()
            raise
        if self.count >= MOST_STEPS or self.size >= MOST_TOKENS:
            self.close()

    def close(self) -> None:
        """End every sequence where it is, and write nothing more."""
        if self.is_open:
            for request in list(self.running):
                self._end(request, is_whole=False)
            self.is_open = False
            self.forget_prefixes()
            for file in filter(None, (self.steps, self.tokens, self.rows)):
                file.close()
            atexit.unregister(self.close)

    def forget_prefixes(self) -> None:
        """The engine's prefix cache is empty."""
        self.prefixes.holders.clear()

    def _step(self, scheduled: Any, ran: Any, outputs: Mapping[str, Any]) -> None:
        for request in scheduled.finished_req_ids:
            self._end(request, is_whole=False)
        if not scheduled.total_num_scheduled_tokens:
            return
        copies = list(self._begin_sequences(scheduled))
        for request, output in outputs.items():
            self.running[request].take(output, self.weights)
            self.size += len(output.new_token_ids)
        row_order = self._row_order(scheduled, ran)
        step = self._spans(scheduled, row_order, outputs)
        step |= {"copies": copies} if copies else {}
        step |= {"preempted": sorted(scheduled.preempted_req_ids)} if scheduled.preempted_req_ids else {}
        if step["spans"]:
            files.line(self.steps, {**step, "weights": self.weights})
            self.count += 1
        for request, output in outputs.items():
            if output.finish_reason is not None:
                self._line(self.running[request], is_whole=True)

    def _begin_sequences(self, scheduled: Any) -> Iterator[list[int]]:
        """Begin a sequence for each request that is new or resumed; what each finds in a cache, as `copies`."""
        new = {request.req_id: request for request in scheduled.scheduled_new_reqs}
        cached = scheduled.scheduled_cached_reqs
        computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for request, count in scheduled.num_scheduled_tokens.items():
            if request in new:
                computed[request] = new[request].num_computed_tokens
            if request in new or request in cached.resumed_req_ids:
                sequence = self._begin(request, new.get(request), computed[request])
                if sequence.computed:
                    source = self.prefixes.source(sequence)
                    yield [sequence.number, 0, sequence.computed, source.number, 0]
            sequence = self.running[request]
            drafts = scheduled.scheduled_spec_decode_tokens
            if not drafts and sequence.computed != computed[request]:
                raise ValueError(f"{request} has {computed[request]} computed tokens, counted {sequence.computed}")
            self.prefixes.add(sequence, sequence.computed + count)

    def _begin(self, request: str, new: Any, computed: int) -> Sequence:
        """A sequence of a new request, or of one that is computed anew: that one begins with all tokens it has."""
        before = self.running.get(request)
        if before is not None:
            tokens, scores_prompt = before.tokens[:], False
            of_request, of_sampling = {**before.request}, before.sampling
            # Its output so far is the prompt of what goes on.
            if "min_tokens" in of_request:
                of_request["min_tokens"] = max(of_request["min_tokens"] - (len(tokens) - before.prompt), 0)
            self._end(request, is_whole=False)
        else:
            tokens = array("q", new.prompt_token_ids)
            sampling = new.sampling_params
            scores_prompt = sampling is not None and sampling.prompt_logprobs is not None
            of_request, of_sampling = request_of(sampling), sampling_of(sampling, self.mode)
        sequence = Sequence(
            self.sequences, tokens, len(tokens), computed, scores_prompt, request=of_request, sampling=of_sampling
        )
        self.sequences += 1
        self.size += len(tokens)
        self.running[request] = sequence
        return sequence

    def _row_order(self, scheduled: Any, ran: Any) -> dict[str, Any]:
        """The requests of a step, in the order in which their rows lie in its batch. The worker writes that order to a
        file; where there is none, as of a worker on another machine, it is the order of the step's output.
        """
        if self.rows is None:
            with contextlib.suppress(OSError):
                path = files.folder()
                self.rows = (path / f"{self.name}.{_ENDS['rows']}").open(encoding="utf-8") if path else None
        text = self.rows.readline() if self.rows is not None else ""
        if not text:
            return {"requests": list(ran.req_ids), "padding": 0}
        rows: dict[str, Any] = json.loads(text)
        if dict(zip(rows["requests"], rows["tokens"], strict=True)) != scheduled.num_scheduled_tokens:
            raise ValueError("the worker's rows are not those that were scheduled")
        return rows

    def _spans(self, scheduled: Any, row_order: Mapping[str, Any], outputs: Mapping[str, Any]) -> dict[str, Any]:
        """The step's tokens in the order of their rows; drafts that were rejected, and rows of no token, as padding."""
        spans, names, verified, padding = list[list[int]](), list[str](), list[int](), row_order["padding"]
        prompts = []
        for request in row_order["requests"]:
            sequence, count = self.running[request], scheduled.num_scheduled_tokens[request]
            drafts = len(scheduled.scheduled_spec_decode_tokens.get(request, ()))
            accepted = len(outputs[request].new_token_ids) - 1 if request in outputs else drafts
            first = sequence.computed
            last = min(first + count - max(drafts - accepted, 0), len(sequence.tokens))
            padding += count - (last - first)
            if last > first:
                is_prompt = first < sequence.prompt
                prompts.append(None if not is_prompt else first == 0 and last >= sequence.prompt)
                verified += [len(spans)] if drafts or (is_prompt and sequence.scores_prompt) else []
                spans.append([sequence.number, first, last])
                names.append(request)
                sequence.computed = last
        phase = _phase(prompts, drafted=bool(scheduled.scheduled_spec_decode_tokens))
        step = {"spans": spans, "phase": phase, "scored": list(range(len(spans))), "requests": names}
        return step | ({"verified": verified} if verified else {}) | ({"padding": padding} if padding else {})

    def _end(self, request: str, *, is_whole: bool) -> None:
        sequence = self.running.pop(request, None)
        if sequence is not None:
            self._line(sequence, is_whole=is_whole)

    def _line(self, sequence: Sequence, *, is_whole: bool) -> None:
        """Write a sequence's tokens, once all before it are written; the first time counts."""
        if sequence.number >= self.lines:
            self.waiting_lines.setdefault(sequence.number, sequence.line(is_whole=is_whole))
        while self.lines in self.waiting_lines:
            files.line(self.tokens, self.waiting_lines.pop(self.lines))
            self.lines += 1


def _phase(prompts: list[bool | None], *, drafted: bool) -> str:
    """The phase of a step, of what of each span is a prompt: none, a part, all of it."""
    if all(whole is None for whole in prompts):
        return "verify" if drafted else "decode"
    return "prefill" if all(prompts) else "chunk"


def of(scheduler: Any) -> Steps:
    """The steps of a scheduler."""
    if not hasattr(scheduler, _HELD):
        setattr(scheduler, _HELD, Steps(scheduler))
    steps: Steps = getattr(scheduler, _HELD)
    return steps


def rows_of(runner: Any) -> Rows:
    """The rows of a worker's model runner."""
    if not hasattr(runner, _HELD):
        setattr(runner, _HELD, Rows(runner))
    rows: Rows = getattr(runner, _HELD)
    return rows
