"""What a graph file may hold, as pydantic models: strict, frozen, unknown keys refused.

A `Reference` is `$name` (a declared size, else a config.json field), a literal, or a list of references of which the
first that resolves counts. It is checked where it is resolved, in `moeparity.plan`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from moeparity.documents.model import Model
from moeparity.plan.spec.base import Identifier

Reference = Any


class Tied(Model):
    """When `when` holds, the weight is the tensor `to` instead (tied weights)."""

    to: str
    when: Reference


class Weight(Model):
    """One tensor of the checkpoint, or one per expert: with `each` (`{e}` in the name), or `stacked` in one tensor.

    `shape` is that of one expert's part; `stacked` is the shape of the whole tensor as it lies in the file: experts,
    inputs, outputs, or with `outputs_first` experts, outputs, inputs.
    """

    name: str
    shape: list[Reference]
    each: Reference = None
    stacked: list[Reference] | None = None
    outputs_first: bool = False
    dtype: Literal["model", "fp32"] = "model"
    when: Reference = True
    tied: Tied | None = None


class Node(Model):
    """One op of a graph."""

    op: str
    inputs: Annotated[list[str], Field(alias="in")]
    weights: dict[Identifier, Weight] = {}
    params: dict[Identifier, Reference] = {}
    when: Reference = True


Nodes = dict[Identifier, Node | list[Node]]


class Block(Model):
    """Nodes with one input and one output; layers consist of such blocks, one after the other."""

    input: str
    nodes: Nodes
    output: str


class Layers(Model):
    """How many layers there are, the prefix of their weights' names, and the blocks of each kind of layer.

    `input` is the value that enters the first layer; `output` is the name under which the nodes of `after` read what
    leaves the last. `rule` names the rule that says which kind a layer is. `window` names the rule for the sliding
    window of each layer, which its nodes read as `$window`, `rope` that for its rope_parameters, `$rope`,
    `indexer` that for whether it chooses keys anew, `$indexer`, and `heads` that for its number of heads, `$heads`.
    """

    count: Reference
    input: str
    output: str
    weights: str
    rule: str
    kinds: dict[str, list[str]]
    window: str | None = None
    rope: str | None = None
    indexer: str | None = None
    heads: str | None = None


class GraphFile(Model):
    """`kind: graph`: one model family; what is not said is as in the graph that it `extends`, which stands alone."""

    kind: Literal["graph"]
    extends: str | None = None
    model_type: list[str]
    sizes: dict[Identifier, Reference] = {}
    expects: dict[str, list[Any]] = {}
    before: Nodes
    blocks: dict[Identifier, Block]
    layers: Layers
    after: Nodes
    output: str
    ignore: list[str] = []


class HeadFile(Model):
    """`kind: head`: what a class of transformers has behind the last norm of any model, in place of the nodes that it
    `replaces`.

    architecture: how the names of these classes end. labels: how many outputs the head has. model_type: the models that
    transformers has such a class for. after, output: as in a graph.
    """

    kind: Literal["head"]
    architecture: str
    labels: int
    model_type: list[str]
    replaces: list[str]
    after: Nodes
    output: str
