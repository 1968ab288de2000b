"""The verdict, and the metrics beside the gate's."""

from __future__ import annotations

from collections.abc import Iterator

from moeparity.bisection.data import ReportData
from moeparity.metrics.gating import gated_name
from moeparity.output.blocks import Group, Phrase, Styled, group, lines
from moeparity.output.words import percent, quantity


def show(report: ReportData) -> Iterator[Group]:
    """All metrics in a table; the gate's is in the report's first line."""
    verdict, metrics = report.verdict, report.metrics
    value = verdict.value
    sentences: list[Phrase] = [
        (
            f"k1 {metrics.k1:.3g}, k2 {metrics.k2:.3g}, k3 {metrics.k3:.3g}, KL(candidate || reference) "
            f"{metrics.kl:.3g}, KL(reference || candidate) {metrics.kl_reverse:.3g}"
        ),
        (
            f"|delta log p| mean {metrics.mean_abs_delta:.3g}, max {metrics.max_abs_delta:.3g}; top-1 agreement "
            f"{percent(metrics.top1_agreement)}"
        ),
    ]
    if value.method not in ("none", "exact"):
        sentences.insert(
            0, f"interval of {gated_name(verdict.metric)}: {value.level:.0%}, {value.method}, over sequences"
        )
    if (whole := report.distribution) is not None:
        sentences.append(
            f"over the vocabulary: JSD {whole.jsd:.3g}, TV mean {whole.tv:.3g}, max {whole.max_tv:.3g}; top-10 Jaccard "
            f"{whole.top10_jaccard:.4g}; rank of the chosen token off by {whole.rank_change:.3g}"
        )
    if metrics.nonfinite_tokens:
        sentences.append(Styled(f"{metrics.nonfinite_tokens} tokens have NaN or infinite logits", "bold red"))
    if metrics.outside_tokens:
        sentences.append(
            Styled(
                f"{quantity(metrics.outside_tokens, 'sampled token')} outside the kept set: log-probability -inf, "
                "in no k1, k2, k3 and delta (docs/log-probs.md)",
                "bold red",
            )
        )
    if metrics.unshared_tokens:
        sentences.append(
            f"KL(candidate || reference) is infinite at {quantity(metrics.unshared_tokens, 'scored token')}, where the "
            "candidate keeps tokens that the reference leaves out; there it is summed over those that both keep"
        )
    yield group("Metrics", lines(*sentences))
