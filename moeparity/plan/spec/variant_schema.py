"""The schema of one side of a recipe: a profile or a trace, its placement, settings, functions and faults."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from moeparity.documents.model import Model
from moeparity.plan.schedule.steps import TOGETHER, Gathered, Groups
from moeparity.plan.spec.base import Gpu, SettingsByName
from moeparity.plan.spec.scheduling import Scheduling
from moeparity.plan.stages import Division, Pipeline

_CALL = r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"


def _call(text: str) -> str:
    if not re.fullmatch(_CALL, text):
        raise ValueError(f"{text!r} names no function; expected `module:function`, as in `my_kernels:experts`")
    return text


Call = Annotated[str, AfterValidator(_call), Field(json_schema_extra={"pattern": f"^{_CALL}$"})]


class Impl(Model):
    """A user's function in place of one node, or of a region of nodes of one layer.

    `nodes` are selectors; the nodes they match in one layer form the region. `call` is `module:function`.
    """

    nodes: str | list[str]
    call: Call


class StatedFault(Model):
    """A fault planted on one side: a shipped one by name (docs/faults.md), or a user's own file.

    `nodes` are selectors, `layers` the numbers of layers; without either it is planted wherever it is possible.
    `values` are those for the fault's free values.
    """

    name: str
    nodes: str | list[str] | None = None
    layers: Annotated[list[int], Field(min_length=1)] | None = None
    values: dict[str, str | int | float | list[int]] = {}

    @model_validator(mode="after")
    def _one_place(self) -> StatedFault:
        if self.nodes is not None and self.layers is not None:
            raise ValueError("`nodes` and `layers` both say where the fault stands; give one")
        return self


Version = str | Annotated[list[StatedFault], Field(min_length=1)]
"""Weights before an update: the folder of a checkpoint, or faults by which they differ from the recipe's."""


class Placement(Model):
    """Over how many ranks a variant is distributed: `tensor` cuts heads, widths and vocabulary, `expert` distributes
    the routed experts.

    `sequence` scatters every reduced sum over the ranks by tokens (sequence parallel). `attention` is the number of
    groups of `tensor` ranks that attend apart, each to its own sequences (data-parallel attention); `gathered` says
    which nodes then get the rows of all groups, on all ranks: `mlp`, everything after attention, or `experts`, the
    routed experts only. `pipeline` is the number of stages that the layers are cut into, each on further ranks of the
    same number; `stages` are the numbers of layers of each stage, or the engine whose rule divides them.
    """

    tensor: Annotated[int, Field(ge=1)] = 1
    expert: Annotated[int, Field(ge=1)] = 1
    sequence: bool = False
    attention: Annotated[int, Field(ge=1)] = 1
    gathered: Gathered = "mlp"
    pipeline: Annotated[int, Field(ge=1)] = 1
    stages: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)] | Division | None = None

    @property
    def pipeline_stages(self) -> Pipeline | None:
        """The stages of the pipeline; None where there is only one."""
        stages = tuple(self.stages) if isinstance(self.stages, list) else self.stages
        return Pipeline(count=self.pipeline, stages=stages) if self.pipeline > 1 else None

    @property
    def groups(self) -> Groups:
        """The groups of ranks that attend apart."""
        return Groups(self.attention, self.gathered) if self.attention > 1 else TOGETHER

    @model_validator(mode="after")
    def _gathers_groups(self) -> Placement:
        if "gathered" in self.model_fields_set and self.attention == 1:
            raise ValueError(
                "`gathered` says what takes the rows of groups that attend apart, and there are none. Add "
                "`attention: N`, or leave it out"
            )
        return self

    @model_validator(mode="after")
    def _divides_stages(self) -> Placement:
        if self.stages is not None and self.pipeline == 1:
            raise ValueError(
                "`stages` says how layers are divided over the stages of a pipeline, and there is one. Add "
                "`pipeline: N`, or leave it out"
            )
        if isinstance(self.stages, list) and len(self.stages) != self.pipeline:
            raise ValueError(
                f"`stages` has the layers of {len(self.stages)} stages, and `pipeline` is {self.pipeline}. Give each "
                "stage its layers"
            )
        return self

    def __str__(self) -> str:
        """`tensor 4, expert 2, pipeline 2, sequence`; empty on one rank."""
        ranks_of = {"tensor": self.tensor, "expert": self.expert, "attention": self.attention}
        words = [f"{name} {ranks}" for name, ranks in ranks_of.items() if ranks > 1]
        words += [f"gathered {self.gathered}"] if self.attention > 1 else []
        words += [] if self.pipeline_stages is None else [f"pipeline {self.pipeline_stages}"]
        return ", ".join([*words, "sequence"] if self.sequence else words)


class Variant(Model):
    """One side of a recipe. `micro_batch` is how many whole sequences go through an op together; `schedule` says it
    for other schedules.

    `gpu`: on the tensor cores of which GPU its GEMMs are added up (None: as torch's kernels on this machine do).
    `plans`: a file of `moeparity kernel plans`, as its cuBLASLt plans those of `linear`, `gate` and `lm_head` (None: in
    one chain).

    `faults` are planted in it: it then computes another model, as a program with these mistakes would.

    A candidate may be a `trace` instead of a `profile`: values that a program computed. `map` says which nodes the
    program's modules are (None: the shipped map that fits). A trace has no choices, so it takes no other keys.
    """

    profile: str = ""
    trace: str | None = None
    map: str | None = None
    placement: Placement = Placement()
    micro_batch: Annotated[int, Field(ge=1)] | None = None
    schedule: Scheduling | None = None
    dtype: Literal["bf16", "fp16", "fp32", "fp64"] | None = None
    gpu: Gpu | None = None
    plans: str | None = None
    set: SettingsByName = {}
    impl: list[Impl] = []
    faults: list[StatedFault] = []

    @model_validator(mode="after")
    def _profile_or_trace(self) -> Variant:
        if bool(self.profile) == (self.trace is not None):
            raise ValueError(
                "a side is exactly one of `profile` (how an engine computes) and `trace` (what a program computed); "
                + ("this one is both" if self.profile else "this one is neither")
            )
        if self.trace is None and self.map is not None:
            raise ValueError("`map` says what the modules of a `trace` are, and this side has none. Leave it out")
        chosen = [
            name
            for name in ("placement", "micro_batch", "schedule", "dtype", "gpu", "plans", "set", "impl", "faults")
            if self._says(name)
        ]
        if self.trace is not None and chosen:
            raise ValueError(
                f"a trace has no choices, so `{chosen[0]}` can't be said of it. Leave it out, or say it of the other "
                "side, which is computed"
            )
        return self

    @model_validator(mode="after")
    def _plans_of_a_gpu(self) -> Variant:
        if self.plans is not None and self.gpu is None:
            raise ValueError("`plans` are those of cuBLASLt on a GPU. Say which beside it: `gpu: h100`")
        return self

    @property
    def label(self) -> str:
        """The name of its profile, or `trace` and its path."""
        return self.profile if self.trace is None else f"trace {self.trace}"

    def _says(self, name: str) -> bool:
        return bool(getattr(self, name) != type(self).model_fields[name].default)

    @model_validator(mode="after")
    def _one_schedule(self) -> Variant:
        if self.micro_batch is not None and self.schedule is not None:
            raise ValueError(
                "`micro_batch` and `schedule` both say what is computed together; give one. Under `schedule` batches "
                "are those of `decode: {batch: ...}`"
            )
        return self
