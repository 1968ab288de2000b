"""RMSNorm over the last axis."""

from __future__ import annotations

from moeparity.ops.declaration import Attribute, Op, Parameter, WeightPort, site

RMS_NORM = Op(
    name="rms_norm",
    says="x / sqrt(mean(x^2) + eps) * weight over the last axis; the statistic is torch's own mean in fp32, "
    "in fp64 for an fp64 x.",
    inputs=("x",),
    weights=(WeightPort(name="weight", says="[width of the last axis]"),),
    parameters=(
        Parameter(name="eps", type=float, says="added to the mean square"),
        Parameter(name="heads", type=int, required=False, says="split the last axis into this many heads, afterwards"),
    ),
    attributes=(
        site(
            "normalized",
            "x * rsqrt(..) is rounded to this dtype before the weight is multiplied: `model` is the Hugging Face form "
            "(cast, then weight), fp32 multiplies the weight in fp32 (weight, then cast)",
        ),
        site("output", "the product with the weight is rounded to this dtype", edge=True),
        Attribute(
            name="association",
            kind="form",
            default="x_rstd_first",
            values=("x_rstd_first", "weight_rstd_first"),
            says="(x * rstd) * weight or x * (rstd * weight), each product rounded in fp32",
            when={"normalized": ("fp32",)},
        ),
        Attribute(
            name="eps",
            kind="semantics",
            default="config",
            values=("config",),
            number=True,
            says="a number in place of the model's eps; `config` keeps it",
        ),
    ),
    kernel="norm:rms_norm",
    source="transformers 5.17.0 and 5.23.0, Qwen3MoeRMSNorm.forward",
)
