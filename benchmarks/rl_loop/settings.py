"""What is tried: how the sampler differs from the trainer, and what the objective makes of the difference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from benchmarks.rl_loop.model import TEMPERATURE

Objective = Literal["recorded", "tis", "mis"]
"""recorded: the clipped ratio is taken to the record, as in PipelineRL. tis, mis: to the trainer's own recomputed
log-probabilities, times the truncated or masked weight of the record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A sampler and an objective.

    profile, choices: of moeparity's forward, which samples; profile "": transformers samples, token after token with a
    cache. raw: what is recorded is taken before the temperature, what is sampled after it. quantised: the format to
    whose codes the sampler's weights are rounded. lag: how many updates older the sampler's weights are. stale_prefix:
    the keys of the prompt's header are those of the weights before the first update. replay: the trainer is given the
    sampler's expert ids. says: in words.
    """

    says: str
    profile: str = ""
    choices: Mapping[str, str | float] = field(default_factory=dict)
    quantised: str = ""
    raw: bool = False
    lag: int = 0
    stale_prefix: bool = False
    replay: bool = False
    objective: Objective = "recorded"

    @property
    def all_choices(self) -> Mapping[str, str | float]:
        """The choices with the temperature that every sampler has."""
        return {"log_probs:form": "log_softmax", "log_probs:temperature": TEMPERATURE, **self.choices}


_HEAD: Mapping[str, str | float] = {"lm_head:inputs": "bf16", "lm_head:output": "bf16"}
_TIS, _MIS = "the same; weights of the record, truncated at 2", "the same; weights of the record, 0 outside of 1/2 to 2"

SETTINGS: Mapping[str, Setting] = {
    "matched": Setting(says="the trainer's own numerics", profile="hf-default"),
    "bf16 head": Setting(says="the head in bf16, all else matched", profile="hf-default", choices=_HEAD),
    "fp8": Setting(
        says="weights of layers and experts in fp8, all else matched", profile="hf-default", quantised="fp8"
    ),
    "fp8, replay": Setting(
        says="the same; expert ids replayed in the trainer", profile="hf-default", quantised="fp8", replay=True
    ),
    "raw": Setting(says="recorded before the temperature, sampled after it", raw=True),
    "raw, TIS": Setting(says=_TIS, raw=True, objective="tis"),
    "stale prefix": Setting(says="keys of the prompts' header as of the first weights", stale_prefix=True),
    "lag 16": Setting(says="weights 16 updates old", lag=16),
    "lag 16, TIS": Setting(says=_TIS, lag=16, objective="tis"),
    "lag 16, MIS": Setting(says=_MIS, lag=16, objective="mis"),
}
