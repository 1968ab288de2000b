"""The page: what `diff` beside a good run, and `explain` with the checkpoint, say of each fault, and of none."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TypeVar

from benchmarks.explained.served.compared import Outcome
from benchmarks.explained.served.named import Named

READING = """\
Two programs load a checkpoint: a vLLM 0.32.0 for CPUs serves requests with a small Qwen3-MoE, a Mixtral and a gpt-oss,
and a TRL 1.16.0 trainer scores sequences with a Qwen3-MoE, all under `moeparity capture`. A fault is planted in the
checkpoint or in its config.json, in some runs two at once; what is asked is the same. `moeparity diff` is given a good
run and the faulty one, and nothing else: no checkpoint and no profile. `moeparity explain` is given the faulty run, the
right checkpoint and the program's profile, and where weights are those of the step before also a checkpoint of that
step (`--previous`). The runs without a fault serve the same requests, half of them in the same steps, half in others,
so that rows are computed together with other rows.

- *layer*: the first start lies in a fault's layer. *module*: and in the module that shows the fault's node.
- *fails* of a run without a fault: `diff` says that values differ. In other steps GEMMs of other numbers of rows may
  give other bits by right; *outside* counts those of which it says that no order of the same sums explains them.
- In other steps other tokens are drawn, and few passes hold the same tokens: `diff` then ends inconclusive, with what
  it could not compare.
- `diff` names no cause: that is what `explain` does.
"""
NAMES = """\
`explain` compares every node from its recorded inputs, then searches at the first of each fault's nodes that differs.

- *node*: some of the fault's nodes differ from what the profile gives, and none that is of no fault.
- *name*: an answer that gives every bit says what the fault is; of a fault that no file of `graphs/faults` lists, no
  answer is given.
- *accused*, of runs without a fault: `explain` calls some node another than the profile says. There should be none.
"""
CLASSES = """\
By class of root causes, as trainers' and servers' trackers name them. Of these no fault is planted here: semantics of
log-probabilities, tokens and templates (`docs/diagnosis.md` tells them from logs), stale prefix caches
(`docs/served.md`), replay data, LoRA, speculative decoding, parallelism (`docs/generated/ranks-faults.md`).
"""


def page(outcomes: Sequence[Outcome], names: Sequence[Named], where: str) -> str:
    """The whole page as Markdown."""
    faults = [outcome for outcome in outcomes if outcome.planted]
    clean = [outcome for outcome in outcomes if not outcome.planted]
    of_faults = [name for name in names if name.fault]
    parts = [
        "# A fault in a server or a trainer, beside a good run",
        f"Written by `python -m scripts.pages served-faults`; {where}.",
        READING.strip(),
        _table(
            "runs, number, layer, module, fails, outside",
            [
                *(_diff_row(f"{label}, with a fault", _of(faults, label)) for label in _labels(faults)),
                *(_diff_row(words, [c for c in clean if c.same == same]) for words, same in _CLEAN.items()),
            ],
        ),
        NAMES.strip(),
        _table("faults, number, node, name", list(_named_rows(of_faults))),
        _table("runs without a fault, number, nodes compared, accused", list(_clean_rows(names))),
        CLASSES.strip(),
        _table(
            "class, number, node, name",
            [
                _named_row(cause, [n for n in of_faults if n.cause == cause])
                for cause in dict.fromkeys(map(_cause, of_faults))
            ],
        ),
        "## Every fault",
        _table("run, node, begins at, with, layer, module", list(map(_row_of_outcome, faults))),
        _table("run, fault, node right, explain says, as it should be", list(map(_row_of_names, of_faults))),
    ]
    return "\n\n".join(parts) + "\n"


Each = TypeVar("Each", Outcome, Named)
CHECKPOINT = re.compile(r"checkpoint=\S*/")
_CLEAN = {"without, in the same steps": True, "without, in other steps": False}


def _table(columns: str, rows: Sequence[Sequence[object]]) -> str:
    names = columns.split(", ")
    lines = (f"| {' | '.join(map(str, row))} |" for row in (names, ["---"] * len(names), *rows))
    return "\n".join(lines)


def _labels(of: Sequence[Outcome | Named]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each.program for each in of))


def _of(every: Sequence[Each], label: str) -> list[Each]:
    return [each for each in every if each.program == label]


def _cause(of: Named) -> str:
    return of.cause


def _diff_row(words: str, some: Sequence[Outcome]) -> tuple[object, ...]:
    planted = [outcome for outcome in some if outcome.planted]
    right = [sum(each.layer_right for each in planted), sum(each.module_right for each in planted)]
    fails, outside = sum(each.status == "fail" for each in some), sum(each.orders == "outside" for each in some)
    return words, len(some), *(right if planted else ("-", "-")), fails, outside


def _named_rows(names: Sequence[Named]) -> Iterator[tuple[object, ...]]:
    for label in _labels(names):
        yield _named_row(f"{label}, one fault", [n for n in _of(names, label) if not n.is_pair])
        yield _named_row(f"{label}, two at once", [n for n in _of(names, label) if n.is_pair])
    yield _named_row("together, that a file lists", [n for n in names if n.expected])
    yield _named_row("together, that no file lists", [n for n in names if not n.expected])


def _named_row(words: str, some: Sequence[Named]) -> tuple[object, ...]:
    return words, len(some), sum(n.node_right for n in some), sum(n.right for n in some)


def _clean_rows(names: Sequence[Named]) -> Iterator[tuple[object, ...]]:
    clean = [name for name in names if not name.fault]
    for label in _labels(clean):
        some = _of(clean, label)
        accused = ", ".join(node for each in some for node in each.innocent)
        yield (
            label,
            len(some),
            sum(each.compared for each in some),
            f"{sum(not n.right for n in some)} {accused}".strip(),
        )


def _row_of_outcome(of: Outcome) -> tuple[object, ...]:
    begins = (of.path or "-", of.says or "-", _yes(of.layer_right), _yes(of.module_right))
    return f"{of.program} {of.name}", ", ".join(of.planted), *begins


def _row_of_names(of: Named) -> tuple[object, ...]:
    says = CHECKPOINT.sub("checkpoint=", of.says[0]).replace("|", "/") if of.says else "none of the known"
    return f"{of.program} {of.run}", of.fault, _yes(of.node_right), says, _yes(of.right)


def _yes(right: bool) -> str:
    return "yes" if right else "NO"
