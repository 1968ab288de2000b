"""What `explain` says of a faulty run from its trace, the right checkpoint and the engine's profile: node and name."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.explained.served.cases import Case
from benchmarks.explained.served.changes import CHANGES
from moeparity.evidence.explain.report import Explained
from moeparity.evidence.explain.trace import ExplainRequest, explain_trace
from moeparity.progress import Stop

NAMES: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "experts_exchanged": (("experts-exchanged",), ("experts-permuted",)),
    "down_exchanged": (("experts-exchanged(part=down",),),
    "experts_turned": (("experts-permuted",),),
    "another_expert": (("expert-of-another-expert",),),
    "expert_zeroed": (("expert-zeroed",),),
    "expert_scaled": (("expert-scaled(part=down",),),
    "gate_and_up": (("fault=gate-and-up-exchanged",),),
    "gate_and_up_of_one": (("expert-gate-and-up-exchanged",),),
    "experts_of_another_layer": (("weights-of-another-layer",),),
    "stale_expert": (("expert-of-another-checkpoint",),),
    "stale_experts": (("weights-of-another-checkpoint",),),
    "stale_router": (("weights-of-another-checkpoint",),),
    "stale_head": (("weights-of-another-checkpoint",),),
    "stale_embedding": (("weights-of-another-checkpoint",),),
    "tied_head": (("head-tied",),),
    "zeroed_keys": (("weights-zeroed",),),
    "scaled_values": (("weights-scaled",),),
    "projection_of_another_layer": (("weights-of-another-layer",),),
    "norm_of_another_layer": (("weights-of-another-layer",),),
    "key_norm_of_ones": (("norm-weight-missing",),),
    "final_norm_of_ones": (("norm-weight-missing",),),
    "other_theta": (("rope_theta=",), ("rope-base",)),
    "other_renormalisation": (("fault=renormalisation",),),
    "fewer_experts": (
        ("3 experts a token where the checkpoint says 4",),
        ("1 expert a token where the checkpoint says 2",),
    ),
    "other_eps": (("eps=",),),
    "other_window": (("window=",),),
    "query_bias_left_out": (("bias-missing",),),
    "sinks_of_another_layer": (("weights-of-another-layer",),),
    "expert_bias_zeroed": (("bias-missing",),),
}
"""By change, the names that are right, each as words that all stand in it; of what is not here no file tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """What was said of one fault in a run of a program, or of a run without one, whose `fault` is empty.

    differ: the nodes whose values the profile does not give. innocent: those of them that are no fault's. says: the
    choices that give every bit at the first of the fault's nodes, empty where none does. right: whether its name was
    given, or none where no file lists it.
    """

    program: str
    run: str
    fault: str
    compared: int
    differ: tuple[str, ...]
    innocent: tuple[str, ...]
    says: tuple[str, ...]
    right: bool
    seconds: float

    @property
    def expected(self) -> bool:
        """Whether a file lists the fault."""
        return self.fault in NAMES

    @property
    def is_pair(self) -> bool:
        """Whether the run has another fault too."""
        return "+" in self.run

    @property
    def cause(self) -> str:
        """The class of causes that the fault is of."""
        return next(cause for change, (_, cause) in CHANGES.items() if change.__name__ == self.fault)

    @property
    def node_right(self) -> bool:
        """Whether nodes of the fault differ from what the profile gives, and none that is of no fault."""
        return bool(self.differ) and not self.innocent

    def as_json(self) -> dict[str, Any]:
        """To be read again by `of_json`."""
        return asdict(self)

    @staticmethod
    def of_json(fields: Mapping[str, Any]) -> Named:
        """What `as_json` gave."""
        lists = ("differ", "innocent", "says")
        return Named(**{**fields, **{name: tuple(fields[name]) for name in lists}})


def named_faults(case: Case) -> Iterator[Named]:
    """Compare every node, then search at the first that differs of each fault's; of a run without one, compare."""
    begin = time.process_time()
    request = ExplainRequest(
        trace=Path(case.run["trace"]), checkpoint=case.right, profile=case.program.profile, previous=case.previous
    )
    compared = explain_trace(request, stop=Stop(seconds=0))
    differ = tuple(dict.fromkeys(node.node for node in compared.nodes if not node.as_started))
    innocent = tuple(name for name in differ if not _of(case.nodes, name))
    of_run = partial(Named, program=case.program.label, run=case.name, compared=len(compared.nodes), innocent=innocent)
    if not case.planted:
        yield of_run(fault="", differ=differ, says=(), right=not differ, seconds=time.process_time() - begin)
    for name, planted in case.planted.items():
        of_fault = tuple(node for node in differ if _of(planted.nodes, node))
        says = _says(explain_trace(replace(request, nodes=of_fault[:1])), of_fault[0]) if of_fault else ()
        wanted = NAMES.get(name, ())
        hit = any(all(word in answer for word in words) for words in wanted for answer in says)
        right = hit if wanted else not says
        yield of_run(fault=name, differ=of_fault, says=says, right=right, seconds=time.process_time() - begin)


def _of(selectors: Sequence[str], node: str) -> bool:
    """Whether a node is one of these."""
    return any(re.fullmatch(re.escape(selector).replace(r"\*", ".*"), node) for selector in selectors)


def _says(answer: Explained, node: str) -> tuple[str, ...]:
    """What gives every bit where the node differs: choices, or in words the shape that it has."""
    of_node = [each for each in answer.nodes if each.node == node and not each.as_started]
    exact = [str(match) for each in of_node for match in each.matches if match.exact]
    return (*exact, *(each.other_shape for each in of_node if each.other_shape))
