"""TRL's metrics."""

from __future__ import annotations

from functools import partial

from moeparity.metrics.declaration import Kind, Metric, Reduce, Source

SOURCE = Source("huggingface/trl", "trl/trainer/grpo_trainer.py", "f2cd57710")
_nats = partial(Metric, source=SOURCE)
_number = partial(Metric, source=SOURCE, unit="1")

_RATIOS: tuple[tuple[str, Kind], ...] = (
    ("min", "sequence min"),
    ("mean", "mean over sequences"),
    ("max", "sequence max"),
)
METRICS: tuple[Metric, ...] = (
    _nats(
        name="trl/sampling_logp_difference/mean",
        reduce=Reduce("token mean", "abs_delta"),
        formula="mean over tokens of |old - sampling| (there the mean of the ranks' means)",
        estimates="the size of delta",
    ),
    _nats(
        name="trl/sampling_logp_difference/max",
        reduce=Reduce("token max", "abs_delta"),
        formula="the greatest |old - sampling|",
        estimates="",
    ),
    *(
        _number(
            name=f"trl/importance_sampling_ratio/{name}",
            reduce=Reduce(kind, "sequence_mask"),
            formula=f"the {name} over sequences of exp(sum delta), 0 where it exceeds 3.0 (mode sequence_mask, the "
            "default)",
            estimates="the weight of a sequence; depends on its length (issues 5814, 4772)",
            clamp="0 where above 3.0",
        )
        for name, kind in _RATIOS
    ),
    _number(
        name="trl/sequence_masked",
        reduce=Reduce("mean over sequences", "sequence_masked"),
        formula="fraction of sequences with exp(sum delta) > 3.0",
        estimates="sequences that the default drops",
    ),
    _number(
        name="trl/importance_sampling_ratio_token_truncate/mean",
        reduce=Reduce("token mean", "truncated_at_3"),
        formula="mean over tokens of min(rho, 3.0) (mode token_truncate)",
        estimates="the weight of a token",
        clamp="rho to 3.0",
    ),
)
