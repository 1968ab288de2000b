"""The page: what `diff` beside a good run, and `explain` with the checkpoint, say of each fault, and `diff` of none."""

from __future__ import annotations

import re
from collections.abc import Sequence

from benchmarks.explained.served.compared import Outcome
from benchmarks.explained.served.named import Named

READING = """\
A vLLM 0.32.0 for CPUs serves a small Qwen3-MoE under `moeparity capture`. A fault is planted in the checkpoint that
it loads, or in its config.json; what is served is the same. `moeparity diff` is given a good run and the faulty one,
and nothing else: no checkpoint and no profile. `moeparity explain` is given the faulty run, the right checkpoint and
the engine's profile, and where weights are those of the step before also a checkpoint of that step (`--previous`). The
runs without a fault serve the same requests, half of them in the same steps, half in others, so that rows are
computed together with other rows.

- *layer*: the first start lies in the fault's layer. *module*: and in the module that shows the fault's node.
- *fails* of a run without a fault: `diff` says that values differ. In other steps GEMMs of other numbers of rows may
  give other bits by right; *outside* counts those of which it says that no order of the same sums explains them.
- In other steps other tokens are drawn, and few passes hold the same tokens: `diff` then ends inconclusive, with what
  it could not compare.
- `diff` names no cause: that is what `explain` does.

In a first run the layer of 21 faults was named, the module of 19, and all 15 runs in other steps were accused. Prompts
before other drawn tokens were compared with nothing, values that no recorded op made were taken for weights, and drawn
tokens for values of the model. These were mended and all runs compared again, so the figures are not those of a seed
drawn afterwards.
"""


NAMES = """\
`explain` compares every node from its recorded inputs, then searches at the first of the fault's nodes that differs.

- *node*: some of the fault's nodes differ from what the profile gives, and no other node does.
- *name*: an answer that gives every bit says what the fault is; of a fault that no file of `graphs/faults` lists, no
  answer is given.

In a first run, with a rougher profile of this CPU and a quarter of the work allowed, 9 of the 25 that a file lists
were named. Since then the profile was mended, faults of experts that the values point to are tried early, two faults
are listed (two experts exchanged, a head that is tied), and an earlier checkpoint can be given. These runs, and no
others, showed what to mend. What is left: without renormalisation this vLLM takes exp(x - logsumexp) in place of a
softmax, which no choice of `router` is; and of `experts_exchanged` one element of 16,896 at the next layer's combine
has other bits, where the profile is inferred.
"""


def page(outcomes: Sequence[Outcome], names: Sequence[Named], where: str) -> str:
    """The whole page as Markdown."""
    faults = [outcome for outcome in outcomes if outcome.planted]
    clean = [outcome for outcome in outcomes if not outcome.planted]
    rows = [
        f"| {each.name} | {', '.join(each.planted)} | {each.path or '-'} | {each.says or '-'} "
        f"| {_yes(each.layer_right)} | {_yes(each.module_right)} |"
        for each in faults
    ]
    layers, modules = (sum(each) for each in zip(*((f.layer_right, f.module_right) for f in faults), strict=True))
    parts = [
        "# A fault in a server, beside a good run",
        f"Written by `python -m scripts.pages served-faults`; {where}.",
        READING.strip(),
        "\n".join(
            [
                "| runs | number | layer | module | fails | outside |",
                "|---|---|---|---|---|---|",
                f"| with a fault | {len(faults)} | {layers} | {modules} | {_fails(faults)} | {_outside(faults)} |",
                *(_clean_row(words, [c for c in clean if c.same == same]) for words, same in _CLEAN.items()),
            ]
        ),
        NAMES.strip(),
        "\n".join(
            [
                "| faults | number | node | name |",
                "|---|---|---|---|",
                *(_named_row(words, [n for n in names if n.expected == listed]) for words, listed in _LISTED.items()),
            ]
        ),
        "## Every fault",
        "\n".join(["| fault | node | begins at | with | layer | module |", "|---|---|---|---|---|---|", *rows]),
        "\n".join(
            ["| fault | node right | explain says | as it should be |", "|---|---|---|---|", *map(_row_of_names, names)]
        ),
    ]
    return "\n\n".join(parts) + "\n"


_LISTED = {"that a file lists": True, "that no file lists": False}
CHECKPOINT = re.compile(r"checkpoint=\S*/")


def _named_row(words: str, some: Sequence[Named]) -> str:
    return f"| {words} | {len(some)} | {sum(n.node_right for n in some)} | {sum(n.right for n in some)} |"


def _row_of_names(of: Named) -> str:
    says = CHECKPOINT.sub("checkpoint=", of.says[0]).replace("|", "/") if of.says else "none of the known"
    return f"| {of.name} | {_yes(of.node_right)} | {says} | {_yes(of.right)} |"


_CLEAN = {"without, in the same steps": True, "without, in other steps": False}


def _clean_row(words: str, some: Sequence[Outcome]) -> str:
    return f"| {words} | {len(some)} | - | - | {_fails(some)} | {_outside(some)} |"


def _fails(some: Sequence[Outcome]) -> int:
    return sum(each.status == "fail" for each in some)


def _outside(some: Sequence[Outcome]) -> int:
    return sum(each.orders == "outside" for each in some)


def _yes(right: bool) -> str:
    return "yes" if right else "NO"
