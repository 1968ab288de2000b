"""What the three files may hold, as pydantic models: strict, frozen, unknown keys refused.

A `Reference` is `$name` (a declared size, else a config.json field), a literal, or a list of references of which the
first that resolves counts. It is checked where it is resolved, in `moeparity.graph`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from moeparity.spec import yaml

Reference = Any
Setting = str | int | float
Side = Literal["candidate", "reference"]
By = Literal["rule", "attribute", "node", "layer", "block"]
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]


def _with_lines(data: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    """What pydantic makes of a mapping, with the lines of its keys kept."""
    checked = handler(data)
    if not isinstance(data, yaml.Mapping):
        return checked
    kept = yaml.Mapping(checked)
    kept.line, kept.key_lines = data.line, data.key_lines
    return kept


Settings = Annotated[dict[str, Setting], WrapValidator(_with_lines)]
"""Values by attribute or address; a `yaml.Mapping` where it was read from a file, so that each key has its line."""


class Model(BaseModel):
    """Base of all: knows the lines its mapping and the keys in it start on (0 when it was not read from a file)."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    _line: int = PrivateAttr(0)
    _key_lines: dict[str, int] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _keep_lines(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        model = handler(data)
        if isinstance(data, yaml.Mapping):
            model._line, model._key_lines = data.line, data.key_lines  # noqa: SLF001
        return model

    @property
    def line(self) -> int:
        """The line its mapping starts on."""
        return self._line

    def line_of(self, key: str) -> int:
        """The line of one of its keys."""
        return self._key_lines.get(key, self._line)


class Tied(Model):
    """A weight that is another tensor when `when` holds."""

    to: str
    when: Reference


class Weight(Model):
    """One tensor of the checkpoint, or one per expert with `each` (`{e}` in the name)."""

    name: str
    shape: list[Reference]
    each: Reference = None
    dtype: Literal["model", "fp32"] = "model"
    when: Reference = True
    tied: Tied | None = None


class Node(Model):
    """One op of a graph."""

    op: str
    inputs: Annotated[list[str], Field(alias="in")]
    weights: dict[Name, Weight] = {}
    params: dict[Name, Reference] = {}
    when: Reference = True


Nodes = dict[Name, Node | list[Node]]


class Block(Model):
    """A run of nodes with one input and one output, stacked by the layers."""

    input: str
    nodes: Nodes
    output: str


class Layers(Model):
    """How many layers there are, what their weights are called, and which blocks each kind of layer stacks.

    The stream enters the first layer as `input` and leaves the last as `output`, a name the nodes of `after` may use.
    """

    count: Reference
    input: str
    output: str
    weights: str
    rule: str
    kinds: dict[str, list[str]]


class GraphFile(Model):
    """`kind: graph`: one model family."""

    kind: Literal["graph"]
    model_type: list[str]
    sizes: dict[Name, Reference] = {}
    expects: dict[str, list[Any]] = {}
    before: Nodes
    blocks: dict[Name, Block]
    layers: Layers
    after: Nodes
    output: str
    ignore: list[str] = []


class Evidence(Model):
    """How sure a profile is of a rule, and where it comes from."""

    level: Literal["verified", "read", "inferred", "opaque"]
    source: str


class Rule(Model):
    """Values for the attributes of all nodes of an op, or of selected nodes."""

    op: str | None = None
    nodes: str | None = None
    model_type: list[str] | None = None
    set: Settings
    evidence: Evidence | None = None
    flag: str | None = None

    @model_validator(mode="after")
    def _one_selector(self) -> Rule:
        if (self.op is None) == (self.nodes is None):
            raise ValueError(
                "a rule selects by exactly one of `op` (all nodes of that op) and `nodes` (a selector); "
                + ("this one has neither" if self.op is None else "this one has both")
            )
        return self


class Fusion(Model):
    """A fused kernel: a chain of ops along edges, and what fusing them sets on the nodes it matches.

    Keys of `set` are `op:attribute`, or `op:site->op` for a site on the edge between two ops of the chain.
    """

    name: Name
    chain: Annotated[list[str], Field(min_length=2)]
    model_type: list[str] | None = None
    set: Settings
    evidence: Evidence | None = None
    flag: str | None = None


class ProfileFile(Model):
    """`kind: profile`: how one engine computes."""

    kind: Literal["profile"]
    name: str
    extends: str | None = None
    fusions: list[Fusion] = []
    rules: list[Rule] = []


class Impl(Model):
    """A user's function in place of one node, or of a region of nodes of one layer.

    `nodes` are selectors; those they match in one layer form the region. `call` is `module:function`.
    """

    nodes: str | list[str]
    call: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]


class Variant(Model):
    """One side of a recipe."""

    profile: str
    micro_batch: Annotated[int, Field(ge=1)] | None = None
    dtype: Literal["bf16", "fp16", "fp32"] | None = None
    set: Settings = {}
    impl: list[Impl] = []


class Sample(Model):
    """The continuation of every prompt, generated by one side before the run; `temperature` 0 is greedy."""

    source: Annotated[Side, Field(alias="from")]
    new_tokens: Annotated[int, Field(ge=1)]
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    seed: Annotated[int, Field(ge=0)] = 0


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


class Gate(Model):
    """The bound that decides parity."""

    metric: Literal["k3"]
    below: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    reduce: Literal["token", "sequence"] = "token"


class RecipeFile(Model):
    """`kind: recipe`: one checkpoint, one set of tokens, two variants, one gate.

    `weights` is `files` or `synthetic(seed)`; `by` groups the differences into toggles; `split` is the number of
    further passes that take the largest toggles apart; `swap` are selectors of blocks to restore to the reference.
    """

    kind: Literal["recipe"]
    checkpoint: str
    weights: Annotated[str, Field(pattern=r"^(files|synthetic\(\d+\))$")] = "files"
    tokens: Tokens
    reference: Variant
    candidate: Variant
    gate: Gate
    by: By = "attribute"
    split: Annotated[int, Field(ge=0)] = 0
    swap: list[str] = []
