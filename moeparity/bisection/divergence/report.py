"""Where it starts, and how far values lie apart at every node and after every layer; plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One attribute on which the two sides differ, where and by what each side's was set, and what would change it.

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
    reference_changed_by: str = ""
    candidate_changed_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """A node with equal inputs and unequal output, and the choices that differ there.

    sequences, tokens: in which a value differs, padding included; `pads` of these tokens are padding.
    same_values: the output differs in dtype only, every value is the same; then all sequences and tokens that are
        computed together with equal inputs count.
    unshown: of a recorded candidate, nodes between its recorded inputs and this one that a trace does not show.
    """

    node: str
    op: str
    sequences: int
    tokens: int
    pads: int
    same_values: bool
    choices: tuple[Choice, ...]
    unshown: tuple[str, ...] = ()

    @property
    def pads_only(self) -> bool:
        """Whether nothing but padding differs here."""
        return self.pads == self.tokens


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

    @property
    def is_finite(self) -> bool:
        """Whether every value of both sides is finite."""
        return not (self.nonfinite_reference or self.nonfinite_candidate)


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
    """The stream after a layer: the node that closes it, its carried error, and the largest local error inside.

    `largest_local` is infinite where a node makes NaN or infinities of its own, at the first such node.
    """

    name: str
    node: str
    carried: Size
    largest_local: float
    largest_local_node: str
