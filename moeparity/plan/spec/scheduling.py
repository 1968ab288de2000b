"""The key `schedule:` of a variant: which of its tokens go through an op together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, model_validator

from moeparity.documents.model import Model

Rule = Literal["transformers", "vllm-v1", "sglang"]
Positive = Annotated[int, Field(ge=1)]

TOKEN_BUDGET: Final[Mapping[Rule, int | None]] = {"transformers": None, "vllm-v1": 8192, "sglang": 8192}
"""The most tokens of a step that prefills, by default. read: vLLM 0.33.0, engine/arg_utils.py get_batch_defaults, the
API server on a GPU of 70 to 160 GiB other than A100; sglang 0.5.23, arg_groups/memory_hook.py, GPUs of 60 to 160
GiB."""
MOST_SEQUENCES: Final[Mapping[Rule, int | None]] = {"transformers": None, "vllm-v1": 1024, "sglang": None}
"""The most sequences that run together, by default. read: vLLM 0.33.0, as above. SGLang derives its own from the memory
there is; it is not modelled."""


class Chunk(Model):
    """A budget of tokens for every step that prefills."""

    chunk: Positive


class Fixed(Model):
    """Batches of `fixed` sequences that start together; the next batch starts when all are done."""

    fixed: Positive


class Decode(Model):
    """Tokens are computed one by one against the cache, from the end of each prompt or from token `from` on.

    `batch` says which sequences decode together; `arrivals` has for each sequence the step at which it arrives, for a
    `continuous` batch.
    """

    start: Annotated[Literal["prompt"] | Positive, Field(alias="from")]
    batch: Literal["single", "all", "continuous"] | Fixed | None = None
    arrivals: list[Annotated[int, Field(ge=0)]] | None = None


class Prefix(Model):
    """A prefix cache: whole blocks of `block` tokens with which an earlier sequence begins too are not computed
    again.
    """

    block: Positive


class Pack(Model):
    """Sequences packed one behind the other into rows of at most `length` tokens.

    `mask`: with `none` a token also sees the sequences before its own. `positions` continue through the row (`running`)
    or start anew with each sequence (`reset`).
    """

    length: Positive
    mask: Literal["block", "none"] = "block"
    positions: Literal["reset", "running"] = "reset"


BEHIND = re.compile(r"prompt\+(\d{1,9})")


def _behind(text: str) -> str:
    if not BEHIND.fullmatch(text):
        raise ValueError(f"{text!r} is no token; expected its number, or `prompt+8`, so many behind the prompt's end")
    return text


Position = Annotated[int, Field(ge=0)]
Behind = Annotated[str, AfterValidator(_behind), Field(json_schema_extra={"pattern": f"^{BEHIND.pattern}$"})]
At = int | str | tuple[int, ...]
"""Where an update comes in: at a token of every sequence, at one behind its prompt, or at one for each sequence."""


class Updates(Model):
    """Updates of the weights while sequences run: `at` has for each, the oldest first, the token of every sequence from
    which on its rows are computed on the new weights: one number for all sequences, `prompt+N` for N behind each
    prompt's end, or a list with a number for each.

    `cache` says what becomes of the keys, values and states that rows before have left: they are `kept`, or
    `recomputed` on the new weights, by one prefill of all rows before. `prefix` says what a prefix cache does: its
    blocks are `kept`, whatever weights computed them, or `keyed` by the version of the weights.
    """

    at: Position | Behind | Annotated[list[Position | Behind | list[Position]], Field(min_length=1)]
    cache: Literal["kept", "recomputed"] = "kept"
    prefix: Literal["kept", "keyed"] = "kept"

    @property
    def positions(self) -> tuple[At, ...]:
        """`at`, with an entry for each update."""
        entries = self.at if isinstance(self.at, list) else [self.at]
        return tuple(tuple(entry) if isinstance(entry, list) else entry for entry in entries)


class Scheduling(Model):
    """Which tokens go through an op together (docs/schedules.md).

    `rule` names the engine whose scheduler decides. `sequences` is the most that run together, `verify` the number of
    drafted tokens that each decode step verifies, `buckets` the sizes to which decode steps are padded, `updates` where
    the weights change under running sequences. `file` is a
    recorded list of batches, instead of all these; `positions` says where positions start in it.
    """

    rule: Rule = "transformers"
    prefill: Literal["whole"] | Chunk | None = None
    decode: Decode | None = None
    sequences: Positive | None = None
    verify: Positive | None = None
    buckets: list[Annotated[int, Field(ge=1, le=65_536)]] = []
    prefix: Prefix | None = None
    pack: Pack | None = None
    updates: Updates | None = None
    file: str | None = None
    positions: Literal["columns", "tokens", "running"] | None = None

    @property
    def budget(self) -> int | None:
        """The most tokens that a prefilling step may have; None: no limit."""
        if self.prefill is None:
            return TOKEN_BUDGET[self.rule]
        return None if self.prefill == "whole" else self.prefill.chunk

    @model_validator(mode="after")
    def _fits_together(self) -> Scheduling:
        problem = self._alone() or self._of_updates() or self._of_the_rule() or self._of_decoding()
        if problem:
            raise ValueError(problem)
        return self

    def _alone(self) -> str | None:
        others = sorted(self.model_fields_set - {"file", "positions"})
        if self.file is not None and others:
            return f"a recorded schedule (`file`) leaves nothing to {_keys(others)}; give the one or the other"
        if self.file is None and self.positions is not None:
            return "`positions` is of a recorded schedule, and there is no `file`; of a pack it stands under `pack`"
        return None

    def _of_updates(self) -> str | None:
        if self.updates is None:
            return None
        if self.pack is not None:
            return "`updates` come in between the steps of a rollout, and a `pack` is of whole sequences; leave one out"
        if self.updates.prefix == "keyed" and self.prefix is None:
            return "`updates.prefix` is of a prefix cache, and there is none (`prefix`); leave it out"
        return None

    def _of_the_rule(self) -> str | None:
        is_continuous = self.decode is not None and self.decode.batch == "continuous"
        if self.rule != "transformers":
            if self.pack is not None:
                return f"`pack` is of a trainer's rows, and rule {self.rule} makes its own; leave one of them out"
            budget, block = self.budget, self.prefix
            if self.rule == "sglang" and block is not None and budget is not None and budget % block.block:
                return (
                    f"SGLang takes chunks of whole pages only, and {budget} tokens (`prefill.chunk`) are no "
                    f"multiple of {block.block} (`prefix.block`); change one of them"
                )
            return None
        servers: tuple[str, ...] = ("buckets", "prefix", "sequences")
        keys = [key for key in servers if key in self.model_fields_set]
        keys += ["decode.batch: continuous"] if is_continuous else []
        if keys:
            return f"transformers has no {_keys(keys)}; name a server's `rule` (vllm-v1 or sglang), or do without"
        return None

    def _of_decoding(self) -> str | None:
        decode, chunked = self.decode, isinstance(self.prefill, Chunk)
        if decode is None and self.verify is not None:
            return "`verify` is of decode steps, and there is no `decode`; add it, as in `decode: {from: prompt}`"
        if self.pack is not None and (decode is not None or chunked):
            return f"`pack` is of a forward, not of {'`decode`' if decode is not None else 'chunks'}; leave one out"
        if decode is None or decode.arrivals is None:
            return None
        by_default = decode.batch is None and self.rule != "transformers"
        return None if by_default or decode.batch == "continuous" else "`arrivals` are of `batch: continuous`; say so"


def _keys(keys: list[str]) -> str:
    return " and ".join(f"`{key}`" for key in keys)
