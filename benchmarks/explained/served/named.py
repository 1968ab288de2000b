"""What `explain` says of a faulty run from its trace, the right checkpoint and the engine's profile: node and name."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from benchmarks.explained.served.cases import Case
from moeparity.evidence.explain.report import Explained
from moeparity.evidence.explain.trace import Request, explain_trace
from moeparity.progress import Stop
from tests.checkpoint_factory import FILE
from tests.real.served import PROFILE

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
    "fewer_experts": (("3 experts a token where the checkpoint says 4",), ("1 experts a token",)),
    "other_eps": (("eps=",),),
    "other_window": (("window=",),),
    "query_bias_left_out": (("bias-missing",),),
    "sinks_of_another_layer": (("weights-of-another-layer",),),
    "expert_bias_zeroed": (("bias-missing",),),
}
"""By change, the names that are right, each as words that all stand in it; of what is not here no file tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """What was said of one run.

    differ: the nodes whose values the profile does not give. innocent: those of them that are not the fault's. says:
    the choices that give every bit at the first of the fault's nodes, empty where none does. expected: whether a file
    lists the fault. right: whether its name was given, or none where no file lists it.
    """

    name: str
    differ: tuple[str, ...]
    innocent: tuple[str, ...]
    says: tuple[str, ...]
    expected: bool
    right: bool
    seconds: float

    @property
    def node_right(self) -> bool:
        """Whether nodes of the fault differ from what the profile gives, and no others."""
        return bool(self.differ) and not self.innocent

    def as_json(self) -> str:
        """To be read again by `of_json`."""
        return json.dumps(asdict(self))

    @staticmethod
    def of_json(text: str) -> Named:
        """What `as_json` wrote."""
        fields = json.loads(text)
        lists = ("differ", "innocent", "says")
        return Named(**{**fields, **{name: tuple(fields[name]) for name in lists}})


def earlier_checkpoint(case: Case, folder: Path) -> Path:
    """The checkpoint of the step before, in `folder`: what is wrong in the run has its weights, all others moved."""
    if not folder.exists():
        folder.mkdir()
        right, wrong = load_file(case.right / FILE), load_file(case.folder / FILE)
        random = torch.Generator().manual_seed(1)
        moved = {
            name: wrong[name]
            if not torch.equal(wrong[name], tensor)
            else (tensor + 0.02 * torch.randn(tensor.shape, generator=random) * tensor.float().std()).to(tensor.dtype)
            for name, tensor in right.items()
        }
        save_file({name: tensor.contiguous() for name, tensor in moved.items()}, folder / FILE, {"format": "pt"})
        (folder / "config.json").write_text((case.right / "config.json").read_text("utf-8"), "utf-8")
    return folder


def named_node(case: Case, scratch: Path) -> Named:
    """Compare every node, then search at the first of the fault's that differs."""
    begin = time.process_time()
    stale = case.name.startswith("stale")
    earlier = (earlier_checkpoint(case, scratch / "earlier"),) if stale else ()
    request = Request(trace=Path(case.run["trace"]), checkpoint=case.right, profile=PROFILE, previous=earlier)
    compared = explain_trace(request, stop=Stop(seconds=0))
    differ = tuple(dict.fromkeys(node.node for node in compared.nodes if not node.as_started))
    names = [node.node for node in compared.nodes] + [unseen.node for unseen in compared.unseen]
    selectors = () if case.planted is None else case.planted.nodes
    patterns = [re.escape(selector).replace(r"\*", ".*") for selector in selectors]
    planted = {name for name in names if any(re.fullmatch(pattern, name) for pattern in patterns)}
    first = next((name for name in differ if name in planted), None)
    says = () if first is None else _says(explain_trace(replace(request, nodes=(first,))), first)
    wanted = NAMES.get(case.name, ())
    hit = any(all(word in answer for word in words) for words in wanted for answer in says)
    return Named(
        name=case.name,
        differ=differ,
        innocent=tuple(name for name in differ if name not in planted),
        says=says,
        expected=bool(wanted),
        right=hit if wanted else not says,
        seconds=time.process_time() - begin,
    )


def _says(answer: Explained, node: str) -> tuple[str, ...]:
    """What gives every bit where the node differs: choices, or in words the shape that it has."""
    of_node = [each for each in answer.nodes if each.node == node and not each.as_started]
    exact = [str(match) for each in of_node for match in each.matches if match.exact]
    return (*exact, *(each.other_shape for each in of_node if each.other_shape))
