"""Where it starts, and how far values lie apart at every node and after every layer; plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One attribute on which the two sides differ, where each side's value was set, by which flag and profile.

    `evidence` is how sure each side's profile is of it; `set by the recipe` where that is what sets it.
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
class Root:
    """A node with equal inputs and unequal output in `sequences` sequences, and the choices that differ there.

    `same_values`: the output differs in dtype only, every value is the same.
    """

    node: str
    op: str
    sequences: int
    same_values: bool
    choices: tuple[Choice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The size of an error: share of bit-equal elements, absolute values, ulps of the coarser dtype, relative L2."""

    equal_share: float
    mean_abs: float
    max_abs: float
    mean_ulp: float
    max_ulp: int
    relative_l2: float
    nonfinite_reference: int
    nonfinite_candidate: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeError:
    """`carried`: candidate's value against the reference's. `local`: the candidate's op on the reference's inputs."""

    node: str
    op: str
    layer: int | None
    carried: Size
    local: Size


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGrowth:
    """The stream after a layer: the node that closes it, its carried error, and the largest local error inside."""

    name: str
    node: str
    carried: Size
    largest_local: float
    largest_local_node: str
