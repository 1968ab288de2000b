"""Tier 1: sequences whose ids the trainer has otherwise than the sampler, as they were aligned by their text."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import torch

from moeparity.errors import counted
from moeparity.logs.diagnosis.finding import Evidence, Finding
from moeparity.logs.diagnosis.intervals import mean
from moeparity.logs.record import Sequence
from moeparity.logs.retokenised import NAME, Retokenised, SpanKind

ADVICE: dict[SpanKind, str] = {
    "same text": "Hand the sampler's token ids to the trainer, as the server returns them: an id list does not come "
    "back from its text.",
    "special token as text": "Tokenise the chat template's marks as special tokens on both sides, or hand over ids.",
    "placeholders": "Hand images over once: one side expands placeholders that are expanded already, or sizes images "
    "otherwise.",
    "other text": "Render the conversation once and hand over ids: a template that is applied again may add, strip or "
    "reorder text.",
}


@dataclass(slots=True)
class Retokenisations:
    """What is kept of a log's sequences whose ids differ. sequences: all of the log. first: where the first one is."""

    sequences: int = 0
    differing: int = 0
    compared_behind: int = 0
    lost: int = 0
    kinds: Counter[SpanKind] = field(default_factory=Counter)
    first: str = ""
    _spans: list[torch.Tensor] = field(default_factory=list)

    def note(self, sequence: Sequence) -> None:
        """Take in a sequence."""
        self.sequences += 1
        of = sequence.retokenised
        if of is None:
            return
        self.first = self.first or f"{place(sequence, of)}, {of.kinds[0]}: {of.says}"
        self.differing += 1
        self.compared_behind += of.behind
        self.lost += of.lost
        self.kinds.update(of.kinds)
        differences = of.sums[:, 1] - of.sums[:, 0]
        self._spans.append(torch.stack([differences.abs().sum(), differences.sum(), torch.tensor(len(differences))]))

    def finding(self) -> Finding | None:
        """What was found; None if all ids are the same. It is no test: ids are equal or they are not."""
        if not self.differing:
            return None
        kinds = ", ".join(f"{kind} in {counted(count, 'sequence')}" for kind, count in self.kinds.most_common())
        return Finding(
            tier="semantics",
            name=NAME,
            verdict="named",
            reason=f"The ids of {self.differing} of {counted(self.sequences, 'sequence')} differ between the sides "
            f"({kinds}); first at {self.first}. What follows is about tokens of the same id behind the same text.",
            evidence=tuple(self._evidence()),
            advice=" ".join(ADVICE[kind] for kind in self.kinds),
        )

    def _evidence(self) -> list[Evidence]:
        evidence = [
            Evidence(name="compared behind other ids of the same text", value=self.compared_behind, unit="tokens"),
            Evidence(name="not comparable", value=self.lost, unit="tokens"),
        ]
        sums, signed, spans = torch.stack(self._spans).unbind(1)
        if bool(spans.any()):
            unit = "nats"
            evidence += [
                Evidence(name="same text in other ids", value=float(spans.sum()), unit="spans"),
                mean("|difference of the sums of log P over a span|", sums, spans, unit),
                mean("trainer's sum less the sampler's", signed, spans, unit),
            ]
        return evidence


def place(sequence: Sequence, of: Retokenised) -> str:
    """Where the ids of a sequence begin to differ."""
    return f"{sequence.where}: token {of.first} of sequence {sequence.id}"
