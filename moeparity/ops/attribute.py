"""A numerical choice that an op leaves open, and when it takes effect.

Its kind says what it decides: at which site a value is rounded (`rounding`), in which order a named sum is added
    (`order`), which of several algebraically equal formulas is evaluated (`form`); or something that is not numerics
    and must not be mistaken for it: another model (`semantics`), or which rank holds which part (`placement`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from moeparity.errors import SpecError
from moeparity.numerics.collectives.declaration import Evidence
from moeparity.numerics.dtypes import CUT_NAMES, FLOAT_NAMES, MODEL, UNROUNDED
from moeparity.numerics.orders import EXPLICIT, NATIVE
from moeparity.numerics.tensor_core.gemm_orders import USUAL
from moeparity.ops.measured import Measured

AttributeKind = Literal["rounding", "order", "form", "semantics", "placement"]
Needs = Literal["always", "pieces", "partials", "no partials"]
Value = str | float
Condition = Mapping[str, tuple[Value | None, ...]]
"""Attribute names, each with the values under which something takes effect (None: the attribute does not exist there).
Empty: always."""

ABOVE_1 = "above 1"
"""In a condition, any whole number above 1."""

OTHER_THAN_1 = "other than 1"
"""In a condition, any number but 1."""

OTHER_THAN_0 = "other than 0"
"""In a condition, any number but 0."""


EDGE = "->"
"""Between a site and the consumer that it is for: `output->layers[0].moe.norm`."""

EXAMPLE_ORDER = "lanes(2) | fold_hi"
"""What messages and the manual show where any summation order is allowed."""

STORED = "stored"
"""Value of a site on an edge: the consumer reads what the op stores, like every other consumer."""


class RefusedError(SpecError):
    """An op cannot compute these shapes with `attribute` as it is. `reason`: what does not fit, and what to do. A
    kernel knows neither its `node` nor the `origin` of the value: the plan adds them.
    """

    def __init__(self, attribute: str, reason: str, *, node: str = "", origin: str = "") -> None:
        self.attribute, self.reason, self.node = attribute, reason, node
        super().__init__(f"{origin}: {self.where}" if origin else self.where)

    @property
    def where(self) -> str:
        """The place and the reason, without what set the value."""
        place = f"{self.node}:{self.attribute}" if self.node else self.attribute
        return f"{place}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribute:
    """One numerical choice of an op.

    `values` lists the words allowed; with `number` any finite number is allowed too, with `least` any whole number from
    there, with `order` any summation order (`moeparity.numerics.orders`), which is kept in its canonical spelling, with
    `tensor_cores` that of any GPU's tensor cores too. `when` names other attributes and the values of theirs under
    which this one takes effect; `needs` whether it does only where the op is cut into pieces, or only where it meets
    (or does not meet) a value in partial sums. `parameter` names a parameter that must be truthy for the attribute to
    exist on a node at all, `when_parameters` parameters and the values of theirs that it must have, `weight` an
    optional weight, `without_weight` one that it must not have, `input` an optional input. `edge` marks the last
    rounding of an op whose result before it is one value whatever it is then rounded to: a consumer may be handed
    another rounding of it than the one stored. `redrawn`: for an order, whether the floor may draw it anew, as an
    engine that adds in order of arrival would; not where another value is another library or takes another order of
    time. `sources`: of a value, how sure it is that it computes what its name says, and by which source. `same_sums`:
    of a value, another one that adds up the same products, rounded at the same places, in an order that can be written
    out. `by_request`: whether its value says if what a request asks for is applied. `usual`: numbers in use, where any
    is allowed. `measured`: how many bits it changes, by a committed table.
    """

    name: str
    kind: AttributeKind
    default: Value
    says: str
    values: tuple[str, ...] = ()
    number: bool = False
    least: int | None = None
    order: bool = False
    tensor_cores: bool = False
    needs: Needs = "always"
    when: Condition = field(default_factory=dict)
    parameter: str | None = None
    when_parameters: Condition = field(default_factory=dict)
    weight: str | None = None
    without_weight: str | None = None
    input: str | None = None
    edge: bool = False
    redrawn: bool = True
    sources: Mapping[str, Evidence] = field(default_factory=dict)
    same_sums: Mapping[str, str] = field(default_factory=dict)
    by_request: bool = False
    usual: tuple[float, ...] = ()
    measured: tuple[Measured, ...] = ()

    @property
    def can_be_requested(self) -> bool:
        """Whether a request to a server may choose it: any number, a whole number that makes another model, or what is
        applied only if a request asks for it.
        """
        return self.number or self.by_request or (self.least is not None and self.kind == "semantics")

    @property
    def expected(self) -> str:
        """The allowed values, as an error message lists them."""
        more = ["a number"] * self.number + [f"an order such as `{EXAMPLE_ORDER}`"] * self.order
        more += ["tensor_core(GPU)"] * self.tensor_cores + ["cublaslt(GPU: PLANS)"] * (self.tensor_cores and self.order)
        more += [] if self.least is None else [f"a whole number from {self.least}"]
        return ", ".join((*self.values, *more))


def site(
    name: str,
    says: str,
    *,
    default: str = MODEL,
    when: Condition | None = None,
    needs: Needs = "always",
    edge: bool = False,
    cuts: bool = False,
    measured: tuple[Measured, ...] = (),
) -> Attribute:
    """A rounding site: the dtype a value is rounded to there; `model` is the dtype the variant runs in. `cuts`: some
    engine rounds toward zero there.
    """
    return Attribute(
        name=name,
        kind="rounding",
        default=default,
        values=(MODEL, *FLOAT_NAMES, *(CUT_NAMES if cuts else ())),
        says=says,
        when=when or {},
        needs=needs,
        edge=edge,
        measured=measured,
    )


def stored(name: str, says: str, when: Condition | None = None, **only: Any) -> Attribute:
    """A rounding site where some kernels keep what they computed: `unrounded` by default."""
    values = (UNROUNDED, MODEL, *FLOAT_NAMES)
    return replace(site(name, says, when=when), default=UNROUNDED, values=values, **only)


def sum_order(
    name: str,
    says: str,
    *,
    default: str = NATIVE,
    when: Condition | None = None,
    condition: Condition | None = None,
    parameter: str | None = None,
    tensor_cores: bool = False,
) -> Attribute:
    """The order in which a sum is added: torch's own, if that is the default, any order written out, or that of a GPU's
    `tensor_cores`. The floor does not draw it again, since another order is another library.
    """
    return Attribute(
        name=name,
        kind="order",
        default=default,
        values=(*([NATIVE] if default == NATIVE else []), *EXPLICIT, *(USUAL if tensor_cores else ())),
        order=True,
        tensor_cores=tensor_cores,
        redrawn=False,
        says=says,
        when=when or {},
        when_parameters=condition or {},
        parameter=parameter,
    )


EXACT, TRITON = "exact", "triton"
"""Functions that are rounded correctly; those of Triton on an H200."""
_SILU_AND_MUL: Final = "vLLM 0.33.0, csrc/cpu/cpu_fused_moe_activations.hpp, silu_and_mul"
LOGISTIC = Attribute(
    name="logistic",
    kind="form",
    default=NATIVE,
    values=(NATIVE, "exp", "cuda", "cuda_fast", "inductor", TRITON, "u20", "sleef"),
    sources=dict.fromkeys(("u20", "sleef"), Evidence("read", _SILU_AND_MUL)),
    says="sigmoid, also within silu: torch's own kernel, which on CPU gives some fp32 numbers another last bit at the "
    "end of a call than within it; or 1 / (1 + exp(-x)), silu x / (1 + exp(-x)), each step rounded, with torch's exp, "
    "CUDA's, CUDA's with -use_fast_math, or CUDA's before Triton's quotient (div.full), as torch's Inductor has silu "
    "on GPUs, or Triton's exp and quotient; approximate instructions are an H200's; or with "
    f"torch's exp_u20 for CPUs or Sleef's expf, of which silu is x * (1 / (1 + exp(-x))) ({_SILU_AND_MUL}: with "
    "AVX-512, and without)",
)
"""How an op computes a sigmoid."""

LOG, FOLDED = "log", "folded"
SOFTPLUS = Attribute(
    name="softplus",
    kind="form",
    default=NATIVE,
    values=(NATIVE, LOG, FOLDED),
    says="torch's own softplus; or log(1 + exp(x)), each step rounded, and x itself above 20; or the same but x + "
    "log(1 + exp(-x)) above 0",
)
"""How an op computes a softplus."""

EPS = Attribute(
    name="eps",
    kind="semantics",
    default="config",
    values=("config",),
    number=True,
    usual=(1e-5, 1e-6, 1e-8, 1e-12),
    says="a number in place of the model's eps; `config` keeps it",
)
"""The eps of a norm."""


def holds(condition: Condition, values: Mapping[str, Value]) -> bool:
    """True when every attribute the condition names has one of the values it asks for."""
    # Most attributes have no condition, and binding asks every one of them.
    return not condition or all(_allows(allowed, values.get(name)) for name, allowed in condition.items())


def _allows(allowed: tuple[Value | None, ...], value: Value | None) -> bool:
    above = ABOVE_1 in allowed and isinstance(value, int) and value > 1
    differs = (OTHER_THAN_1 in allowed and value != 1) or (OTHER_THAN_0 in allowed and value != 0)
    return value in allowed or above or differs
