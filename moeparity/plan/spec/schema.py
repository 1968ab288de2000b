"""What profiles, recipes and checks of logs may hold, as pydantic models: strict, frozen, unknown keys refused."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from moeparity.errors import did_you_mean
from moeparity.numerics.collectives.declaration import Level
from moeparity.paths import LIMIT_FACTOR, limit
from moeparity.plan.schedule.cases import WRITTEN, Case, Range, write
from moeparity.plan.schedule.grid import MOST_STEPS
from moeparity.plan.schedule.steps import PHASES, TOGETHER, Gathered, Groups, Phase
from moeparity.plan.spec.base import By, Model, Name, Settings, Side
from moeparity.plan.spec.expect import Expect, LogExpect
from moeparity.plan.spec.gates import Gate, Gates
from moeparity.plan.spec.scheduling import Scheduling

LARGEST: Final = 10**9
"""Numbers of rows, keys, queries and bytes are below this."""


class Evidence(Model):
    """How sure a profile is of a rule, and where it comes from."""

    level: Level
    source: str


Number = Annotated[int, Field(ge=1, lt=LARGEST)]


class Bounds(Model):
    """Whole numbers `from` one (itself included; None: 0) and `below` another (itself not; None: without end)."""

    first: Annotated[Number | None, Field(alias="from")] = None
    below: Number | None = None

    @model_validator(mode="after")
    def _some(self) -> Bounds:
        if self.first is None and self.below is None:
            raise ValueError("it has neither `from` nor `below`; give one or both")
        if self.first is not None and self.below is not None and self.first >= self.below:
            raise ValueError(f"no number is `from` {self.first} and `below` {self.below}")
        return self

    @property
    def range(self) -> Range:
        """The numbers themselves."""
        return Range(self.first or 0, self.below)


class InCases(Model):
    """What holds in some steps of a schedule alone.

    `phase` names one phase or several (None: it holds in all). `rows`: how many rows go through the op together.
    `keys`: how many keys attention reads of a sequence; `longest`: of that sequence of the step which has most.
    `queries`: how many tokens of a sequence are in the step. `bytes`: of the message that a rank hands to an all-reduce
    of the step, in the dtype that the side runs in; `ranks`: over how many ranks it is added.
    """

    phase: Phase | Annotated[list[Phase], Field(min_length=1)] | None = None
    rows: Bounds | None = None
    longest: Bounds | None = None
    keys: Bounds | None = None
    queries: Bounds | None = None
    bytes: Bounds | None = None
    ranks: Bounds | None = None

    @property
    def cases(self) -> tuple[Case, ...] | None:
        """The cases it holds in; None: all."""
        bounds: dict[str, Bounds | None] = {name: getattr(self, name) for name in WRITTEN}
        ranges = {name: bound.range for name, bound in bounds.items() if bound is not None}
        if self.phase is None and not ranges:
            return None
        phases = PHASES if self.phase is None else self.phase if isinstance(self.phase, list) else (self.phase,)
        return tuple(write(phase, ranges) for phase in phases)


class Rule(InCases):
    """Values for the attributes of all nodes of an op, or of selected nodes, in all steps or in some (`phase`, `rows`,
    `longest`, `keys`, `queries`, `bytes`, `ranks`).

    `set_by` is what a user gives the engine to have them (None: nothing, it does so by itself); `changed_by` is what
    would give others, `none` where nothing does (None: leaving `set_by` out).
    """

    op: str | None = None
    nodes: str | None = None
    model_type: list[str] | None = None
    set: Settings
    evidence: Evidence | None = None
    set_by: str | None = None
    changed_by: str | None = None

    @model_validator(mode="after")
    def _one_selector(self) -> Rule:
        if (self.op is None) == (self.nodes is None):
            raise ValueError(
                "a rule selects by exactly one of `op` (all nodes of that op) and `nodes` (a selector); "
                + ("this one has neither" if self.op is None else "this one has both")
            )
        return self


class Fusion(InCases):
    """A fused kernel: a chain of ops along edges, and what fusing them sets on the nodes it matches.

    Keys of `set` are `op:attribute`, or `op:site->op` for a site on the edge between two ops of the chain. Flags are
    those of a `Rule`.
    """

    name: Name
    chain: Annotated[list[str], Field(min_length=2)]
    model_type: list[str] | None = None
    set: Settings
    evidence: Evidence | None = None
    set_by: str | None = None
    changed_by: str | None = None


class Engine(Model):
    """Whose numerics a profile states, of which version, and in which setup (`says`, one line).

    `none` is no engine: such a profile claims nothing of anyone. A profile that names none speaks of the engine of what
    it extends.
    """

    name: str
    version: str
    says: str


class ProfileFile(Model):
    """`kind: profile`: how one engine computes."""

    kind: Literal["profile"]
    name: str
    engine: Engine | None = None
    extends: str | None = None
    fusions: list[Fusion] = []
    rules: list[Rule] = []


_CALL = r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"


def _call(text: str) -> str:
    if not re.fullmatch(_CALL, text):
        raise ValueError(f"{text!r} names no function; expected `module:function`, as in `my_kernels:experts`")
    return text


Call = Annotated[str, AfterValidator(_call), Field(json_schema_extra={"pattern": f"^{_CALL}$"})]


class Impl(Model):
    """A user's function in place of one node, or of a region of nodes of one layer.

    `nodes` are selectors; those they match in one layer form the region. `call` is `module:function`.
    """

    nodes: str | list[str]
    call: Call


class StatedFault(Model):
    """A fault planted on one side: a shipped one by name (docs/faults.md), or a file of one's own.

    `nodes` are selectors, `layers` the numbers of layers; without either it stands wherever it can. `values` are what
    the fault leaves open.
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


class Placement(Model):
    """Over how many ranks one variant lies: `tensor` cuts heads, widths and vocabulary, `expert` the routed experts.

    `sequence` scatters every reduced sum over the ranks by tokens (sequence parallel). `attention` groups of `tensor`
    ranks attend apart, each to sequences of its own (data-parallel attention); `gathered` says what takes the rows of
    all of them, on all their ranks: `mlp`, all that follows attention, or `experts`, the routed experts alone.
    """

    tensor: Annotated[int, Field(ge=1)] = 1
    expert: Annotated[int, Field(ge=1)] = 1
    sequence: bool = False
    attention: Annotated[int, Field(ge=1)] = 1
    gathered: Gathered = "mlp"

    @property
    def groups(self) -> Groups:
        """The groups that attend apart."""
        return Groups(self.attention, self.gathered) if self.attention > 1 else TOGETHER

    @model_validator(mode="after")
    def _gathers_groups(self) -> Placement:
        if "gathered" in self.model_fields_set and self.attention == 1:
            raise ValueError(
                "`gathered` says what takes the rows of groups that attend apart, and there are none. Add "
                "`attention: N`, or leave it out"
            )
        return self

    def __str__(self) -> str:
        """`tensor 4, expert 2, sequence`; empty on one rank."""
        ranks_of = {"tensor": self.tensor, "expert": self.expert, "attention": self.attention}
        words = [f"{name} {ranks}" for name, ranks in ranks_of.items() if ranks > 1]
        words += [f"gathered {self.gathered}"] if self.attention > 1 else []
        return ", ".join([*words, "sequence"] if self.sequence else words)


class Variant(Model):
    """One side of a recipe. `micro_batch` whole sequences go through an op together, or what `schedule` says.

    `faults` are planted in it: it computes another model, as a program with these mistakes would.

    A candidate may be a `trace` in place of a `profile`: what a program computed, of whose modules a `map` says which
    nodes they are (None: a shipped one that they fit). It has no choices, so nothing else is said of it.
    """

    profile: str = ""
    trace: str | None = None
    map: str | None = None
    placement: Placement = Placement()
    micro_batch: Annotated[int, Field(ge=1)] | None = None
    schedule: Scheduling | None = None
    dtype: Literal["bf16", "fp16", "fp32", "fp64"] | None = None
    set: Settings = {}
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
            for name in ("placement", "micro_batch", "schedule", "dtype", "set", "impl", "faults")
            if self._says(name)
        ]
        if self.trace is not None and chosen:
            raise ValueError(
                f"a trace has no choices, so `{chosen[0]}` can't be said of it. Leave it out, or say it of the other "
                "side, which is computed"
            )
        return self

    @property
    def named(self) -> str:
        """Its profile, or its trace."""
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


class Sample(Model):
    """The continuation of every prompt, generated by one side before the run; `temperature` 0 is greedy."""

    source: Annotated[Side, Field(alias="from")]
    new_tokens: Annotated[int, Field(ge=1)]
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    seed: Annotated[int, Field(ge=0)] = 0

    @field_validator("new_tokens")
    @classmethod
    def _few_steps(cls, tokens: int) -> int:
        most = limit(MOST_STEPS)
        if tokens > most:
            raise ValueError(
                f"each of {tokens:,} new tokens is a step of its own; expected at most {most:,}. Sample fewer, or "
                f"raise the limit with {LIMIT_FACTOR}"
            )
        return tokens


class Tokens(Model):
    """Where the tokens are, how text becomes ids, and which side sampled them.

    `tokenizer` is `bytes`, `checkpoint` (its own tokenizer.json) or a path to a tokenizer.json.
    """

    file: str
    tokenizer: str | None = None
    padding: Literal["right", "left"] = "right"
    sampled_from: Side | None = None
    sample: Sample | None = None

    @model_validator(mode="after")
    def _one_side(self) -> Tokens:
        if (self.sampled_from is None) == (self.sample is None):
            raise ValueError(
                "the tokens need exactly one of `sampled_from` (the side that sampled them) and `sample` (to generate "
                "them); " + ("these have neither" if self.sample is None else "these have both")
            )
        return self

    @property
    def sampler(self) -> Side:
        """The side that sampled, or is to sample, the tokens."""
        side = self.sampled_from if self.sample is None else self.sample.source
        assert side is not None
        return side


SYNTHETIC = re.compile(r"synthetic\((\d{1,18})\)")


def _weights(text: str) -> str:
    if text != "files" and not SYNTHETIC.fullmatch(text):
        raise ValueError(
            f"{text!r} is neither `files`, the checkpoint's own, nor `synthetic(0)`, made from a seed (here 0)."
            f"{did_you_mean(text, ('files', 'synthetic(0)'))}"
        )
    return text


Weights = Annotated[
    str, AfterValidator(_weights), Field(json_schema_extra={"pattern": rf"^(files|{SYNTHETIC.pattern})$"})
]


class RecipeFile(Model):
    """`kind: recipe`: one checkpoint, one set of tokens, two variants, one gate.

    `weights` is `files` or `synthetic(seed)`; `by` groups the differences into toggles; `split` is the number of
    further passes that take the largest toggles apart; `swap` are selectors of blocks to restore to the reference;
    `floor` also runs the reference against itself, in other micro-batches and orders (about four more forwards);
    `oracle` also runs everything in fp64, to say which side is nearer the truth; `replay` also runs the candidate with
    more and more of the reference's routes, and each toggle alone with its expert ids; `envelope` is the number of
    legal orders to draw of each op whose own numerics differ, none by default; `attribute` also
    shares the divergence out among the toggles and looks for the smallest sets to restore, with at most `mixtures`
    mixtures in each search; `grafts` puts what a trace recorded into the reference, layer by layer, to say how much of
    the divergence each makes; `costs` are what restoring each toggle costs, in any one unit; `expect` is what
    `moeparity check` holds the report to. `gate` is one bound, or a list of one against the reference and one against
    the record; a bound against the record that stands alone is that against the reference, too.
    """

    kind: Literal["recipe"]
    checkpoint: str
    weights: Weights = "files"
    tokens: Tokens
    reference: Variant
    candidate: Variant
    gate: Gates
    by: By = "attribute"
    split: Annotated[int, Field(ge=0)] = 0
    swap: list[str] = []
    floor: bool = True
    oracle: bool = False
    replay: bool = False
    envelope: Annotated[int, Field(ge=0)] = 0
    attribute: bool = False
    mixtures: Annotated[int, Field(ge=1)] = 1024
    costs: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = {}
    grafts: bool = True
    expect: Expect = Expect()

    @model_validator(mode="after")
    def _of_choices(self) -> RecipeFile:
        if self.reference.trace is not None:
            raise ValueError(
                "reference: a trace has no choices, so nothing can be tried on it. Write it as the `candidate`, and "
                "what it is held against as the `reference`"
            )
        if self.candidate.trace is None:
            return self
        tried = [name for name in ("split", "swap", "replay", "envelope", "attribute") if getattr(self, name)]
        if tried:
            raise ValueError(
                f"`{tried[0]}` tries choices of the candidate, and a trace has none. Leave it out: what each layer "
                "makes is told by grafts (`grafts`)"
            )
        if self.tokens.sample is not None:
            raise ValueError(
                "tokens: a trace is of tokens that are there, so `sample` can make no others. Give them "
                "as a file, with `sampled_from`"
            )
        return self

    @property
    def variants(self) -> tuple[Variant, Variant]:
        """What both sides are bound by: a trace by the reference's own choices, so that nothing differs but values."""
        return self.reference, self.reference if self.candidate.trace is not None else self.candidate

    @property
    def gates(self) -> tuple[Gate, ...]:
        """The bounds, as many as there are."""
        return tuple(self.gate) if isinstance(self.gate, list) else (self.gate,)

    @property
    def reference_gate(self) -> Gate:
        """The bound on the candidate against the reference: that against the record where there is no other."""
        return next((gate for gate in self.gates if gate.metric is not None), self.gates[0])

    @property
    def record_gate(self) -> Gate | None:
        """The bound against the record; None where the recipe has none."""
        return next((gate for gate in self.gates if gate.recorded is not None), None)

    @property
    def synthetic(self) -> int | None:
        """The seed of synthetic weights; None where the checkpoint's own are used."""
        match = SYNTHETIC.fullmatch(self.weights)
        return int(match[1]) if match else None


class LogGate(Model):
    """The bound that decides parity of a log: on any metric that is a mean, by its name in docs/metrics.md."""

    metric: str
    below: Annotated[float, Field(gt=0, allow_inf_nan=False)]


class LogCheck(Model):
    """`kind: log`: logs of log-probabilities and what `moeparity check` holds them to.

    `files` are paths, or patterns such as `train_data_step*.jsonl`, beside this file; `trainer` likewise, where the
    sampler's and the trainer's log-probabilities lie in files of their own, joined by `join`. `partial` leaves out
    sequences that only one side has. `format` and `trainer_format` are what the files are, read off them by default.
    """

    kind: Literal["log"]
    files: Annotated[list[str], Field(min_length=1)]
    trainer: list[str] = []
    format: str | None = None
    trainer_format: str | None = None
    join: Literal["id", "order"] = "id"
    partial: bool = False
    gate: LogGate
    expect: LogExpect = LogExpect()
