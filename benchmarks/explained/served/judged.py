"""What a trace of a server tells of a fault in it: by `explain`, by `bisect`, and by `diff` beside a good trace."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from moeparity.bisection.pipeline import bisect
from moeparity.errors import MoeparityError
from moeparity.evidence.diff.run import diff
from moeparity.evidence.explain.report import Explained
from moeparity.evidence.explain.trace import Request, explain_trace

LAYER = re.compile(r"layers[\[.](\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was said of one run.

    nodes: the nodes that `explain` names, each with what it says. roots: those that `bisect` names. starts: where `diff`
    says that two runs begin to differ. found: whether the planted node, and it first, is named by each. innocent: nodes
    named that are not the planted ones. word: `named`, `none` (nothing that was tried gives these bits) or `other`.
    seconds: of processor time, by what was asked.
    """

    name: str
    cause: str
    model: str
    kind: str
    planted: tuple[str, ...]
    words: tuple[tuple[str, ...], ...]
    nodes: Mapping[str, str]
    roots: tuple[str, ...]
    starts: tuple[str, ...]
    found: bool
    is_root: bool
    begins: bool
    innocent: tuple[str, ...]
    word: str
    seconds: Mapping[str, float]

    @property
    def right(self) -> bool:
        """Whether the name is as it should be: none where no file lists the fault."""
        return self.word == ("named" if self.words else "none")

    def as_json(self) -> str:
        """To be read again by `outcome_of`."""
        return json.dumps(asdict(self), indent=1)


def outcome_of(text: str) -> Outcome:
    """What `as_json` wrote."""
    fields = json.loads(text)
    lists = {name: tuple(fields[name]) for name in ("planted", "roots", "starts", "innocent")}
    return Outcome(**{**fields, **lists, "words": tuple(map(tuple, fields["words"]))})


def recipe(folder: Path, checkpoint: Path, profile: str, run: Mapping[str, Any], trace: Path) -> Path:
    """The trace as a candidate, its drawn tokens scored, against a profile on the checkpoint."""
    answer = json.loads(Path(run["answer"]).read_text("utf-8"))
    lines = [
        {"input_ids": prompt + drawn, "mask": [0] * len(prompt) + [1] * len(drawn)}
        for prompt, drawn in zip(run["prompts"], answer["tokens"], strict=True)
    ]
    (folder / "tokens.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), "utf-8")
    file = {
        "kind": "recipe",
        "checkpoint": str(checkpoint),
        "tokens": {"file": "tokens.jsonl", "sampled_from": "candidate"},
        "reference": {"profile": profile, "dtype": "bf16"},
        "candidate": {"trace": str(trace), "grafts": False},
        "gate": {"metric": "k3", "below": 1e-4},
        "floor": False,
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(file), "utf-8")
    return folder / "recipe.yaml"
