"""The pairs of programs, and what is known to differ between them. Free of torch and of moeparity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["combine_accumulate", "router_eps", "router_scores", "final_norm_eps", "stale_expert"]

SIDES = ("reference", "candidate")
SEQUENCES, TOKENS = 32, 96
EAGER = {"attn_implementation": "eager", "experts_implementation": "eager"}
DEFAULT: dict[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """One culprit: how transformers is patched, the module that holds it, and its address in moeparity.

    `attribute` is None where no profile can state the fault.
    """

    kind: Kind
    layer: int = 0
    value: float = 0.0
    module: str
    attribute: str | None
    setting: str | float = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A pair: the reference is always transformers with eager attention and eager experts.

    `arguments` are the candidate's `from_pretrained` arguments and `profile` the shipped profile that describes them.
    """

    name: str
    says: str
    arguments: dict[str, str]
    profile: str
    plants: tuple[Plant, ...] = ()


def _router_eps(layer: int) -> Plant:
    return Plant(
        kind="router_eps",
        layer=layer,
        value=0.05,
        module=f"model.layers.{layer}.mlp.gate",
        attribute=f"layers[{layer}].moe.router:renormalize_eps",
        setting=0.05,
    )


CASES = (
    Case(name="clean", says="the same program twice", arguments=EAGER, profile="hf-eager"),
    Case(
        name="one rounding",
        says="layer 2 adds its experts up in fp32 in place of bf16; all else has the same bits",
        arguments=EAGER,
        profile="hf-eager",
        plants=(
            Plant(
                kind="combine_accumulate",
                layer=2,
                module="model.layers.2.mlp.experts",
                attribute="layers[2].moe.combine:accumulate",
                setting="fp32",
            ),
        ),
    ),
    Case(
        name="behind noise",
        says="eager against sdpa attention and grouped experts in every layer, and in layer 2 a wrong eps (0.05) under "
        "the routing weights' sum",
        arguments=DEFAULT,
        profile="hf-default",
        plants=(_router_eps(2),),
    ),
    Case(
        name="in the noise",
        says="eager against sdpa attention and grouped experts in every layer, and in layer 2 router scores rounded to "
        "bf16",
        arguments=DEFAULT,
        profile="hf-default",
        plants=(
            Plant(
                kind="router_scores",
                layer=2,
                module="model.layers.2.mlp.gate",
                attribute="layers[2].moe.router:scores",
                setting="bf16",
            ),
        ),
    ),
    Case(
        name="two culprits",
        says="a wrong eps (0.05) under the routing weights' sum in layer 1, and another (0.1) in the final norm; all "
        "else has the same bits",
        arguments=EAGER,
        profile="hf-eager",
        plants=(
            _router_eps(1),
            Plant(kind="final_norm_eps", value=0.1, module="model.norm", attribute="norm:eps", setting=0.1),
        ),
    ),
    Case(
        name="no such attribute",
        says="expert 3 of layer 2 has gate and up projections 1 % too large, as after a weight sync that scaled twice",
        arguments=EAGER,
        profile="hf-eager",
        plants=(
            Plant(
                kind="stale_expert",
                layer=2,
                value=1.01,
                module="model.layers.2.mlp.experts",
                attribute=None,
            ),
        ),
    ),
)


def case(name: str) -> Case:
    """The case of that name."""
    return next(each for each in CASES if each.name == name)
