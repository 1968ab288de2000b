"""What `diff` says of a run of a server beside a good one: where it begins, and how much of it was compared."""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.explained.served.cases import Case
from moeparity.evidence.diff.run import diff

LAYER = re.compile(r"layers[\[.](\d+)")
PLACES = {
    "combine": ("experts",),
    "router": ("experts", "gate", "router"),
    "rope": ("rotary_emb",),
    "attend": ("attn",),
    "gate": ("gate", "router"),
    "q_proj": ("qkv_proj", "q_proj"),
    "k_proj": ("qkv_proj", "k_proj"),
    "v_proj": ("qkv_proj", "v_proj"),
    "embed": ("embed_tokens",),
    "lm_head": ("logits_processor", "lm_head"),
}
"""By the last name of a node, what stands in the path of the module that shows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was said of one run of a program: the first start, and how it is called.

    planted: the nodes of its faults, none of a run without one. status: of `diff`. outside: whether no order of the
    same sums explains what begins there. same: whether the requests were added at the same steps as in the good run.
    """

    program: str
    name: str
    planted: tuple[str, ...]
    status: str
    path: str
    says: str
    orders: str
    compared: int
    uncovered: int
    same: bool
    seconds: float

    @property
    def layer_right(self) -> bool:
        """Whether it begins in the fault's layer, or outside of layers as it does; of all layers in the first."""
        planted = {match[1] if (match := LAYER.search(node)) else "0" * ("[*]" in node) for node in self.planted}
        match = LAYER.search(self.path)
        return bool(self.path) and (match[1] if match else "") in planted

    @property
    def module_right(self) -> bool:
        """Whether it begins in the module that shows the fault's node."""
        last = {node.rpartition(".")[2] for node in self.planted}
        return self.layer_right and any(word in self.path for name in last for word in PLACES.get(name, (name,)))

    def as_json(self) -> str:
        """To be read again by `of_json`."""
        return json.dumps(asdict(self))

    @staticmethod
    def of_json(text: str) -> Outcome:
        """What `as_json` wrote."""
        fields = json.loads(text)
        return Outcome(**{**fields, "planted": tuple(fields["planted"])})


def outcome(good: Case, case: Case) -> Outcome:
    """Compare a run with a good one."""
    begin = time.process_time()
    report = diff(Path(good.run["trace"]), Path(case.run["trace"]))
    first = report.starts[0] if report.starts else None
    return Outcome(
        program=case.program.label,
        name=case.name,
        planted=case.nodes,
        status=report.status,
        path="" if first is None else first.path or "outside modules",
        says="" if first is None else f"{first.kind}: {first.slot}",
        orders="" if first is None else first.orders.verdict,
        compared=report.coverage.compared,
        uncovered=report.coverage.uncovered,
        same=list(case.run["arrivals"]) == list(good.run["arrivals"]),
        seconds=time.process_time() - begin,
    )
