"""The roots, and how far values lie apart at every node and after every layer; plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One attribute whose value differs between the sides, with where and by what each value was set.

    reference_evidence, candidate_evidence: how sure each side's profile is of its value, or `set by the recipe`.
    """

    attribute: str
    reference: str
    candidate: str
    reference_origin: str
    candidate_origin: str
    reference_set_by: str = ""
    candidate_set_by: str = ""
    reference_evidence: str
    candidate_evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPlace:
    """Where a token stands: its sequence in the token file, and its position there, each from 0. `request`: what the
    server called that sequence; empty if no trace says it.
    """

    sequence: int
    position: int
    request: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """A node with equal inputs and unequal output, and the choices that differ there.

    local: the relative L2 error of the output on equal inputs; infinite if a value is not finite or has another shape,
        or if whole numbers alone differ.
    places: the first tokens with a value that differs, padding aside.

    sequences, tokens: how many have a value that differs, padding included; `pads` of these tokens are padding.
    same_values: the outputs have equal values and different dtypes. Then `sequences` and `tokens` count everything in
        the cells concerned.
    unshown: for a recorded candidate, the nodes between recorded inputs and this node that the trace does not show.
    """

    node: str
    op: str
    sequences: int
    tokens: int
    pads: int
    same_values: bool
    local: float
    places: tuple[TokenPlace, ...]
    choices: tuple[Choice, ...]
    unshown: tuple[str, ...] = ()

    @property
    def pads_only(self) -> bool:
        """Whether nothing but padding differs here."""
        return self.pads == self.tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownDifference:
    """A node of a trace that differs in the good run, the recipe's `baseline`, as much already, and so is no root.

    local, baseline: the relative errors on recorded inputs, in the candidate's trace and in the good run's.
    """

    node: str
    local: float
    baseline: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The size of an error: fraction of bit-equal elements, absolute values, ulps of the coarser dtype, relative L2."""

    equal_share: float
    mean_abs: float
    max_abs: float
    mean_ulp: float
    max_ulp: int
    relative_l2: float
    nonfinite_reference: int
    nonfinite_candidate: int

    @property
    def is_finite(self) -> bool:
        """Whether every value of both sides is finite."""
        return not (self.nonfinite_reference or self.nonfinite_candidate)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeError:
    """The errors at one node. carried: of the candidate's value. local: of the candidate's op on the reference's
    inputs.
    """

    node: str
    op: str
    layer: int | None
    carried: Size
    local: Size


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGrowth:
    """The error of the residual stream after a layer: at `node`, the layer's last, and the largest local error within
    it.

    `largest_local` is infinite if a node of the layer makes NaN or infinities on finite inputs; the first such node is
    named.
    not_measured: the nodes of the layer without a local error: the sides' values there hold other things, such as rows
        that have met their routing weights and rows that have not, or the candidate can't read the reference's values.
    """

    name: str
    node: str
    carried: Size
    largest_local: float
    largest_local_node: str
    not_measured: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Where the sides part, and how the error grows.

    roots: nodes with unequal output on equal inputs, in the graph's order; of a trace those with the largest local
    error first. subtracted: nodes that are none, since a good run differs there as much. growth: after each layer.
    nodes: at every node.
    """

    roots: tuple[Root, ...]
    growth: tuple[LayerGrowth, ...]
    nodes: tuple[NodeError, ...]
    subtracted: tuple[KnownDifference, ...] = ()
