"""The page that the run writes, from the answers that it kept. No figure is written by hand."""

from __future__ import annotations

import json
import os
import platform
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import get_args

from benchmarks.planted import decoys, hidden, peers
from benchmarks.planted.cases import CHUNKS, FIRST, LEAST, MOST, SEQUENCES, TOKENS, Case
from benchmarks.planted.fix import load
from benchmarks.planted.hidden_cases import Hidden
from benchmarks.planted.hidden_cases import case as hidden_case
from benchmarks.planted.program import matches
from benchmarks.planted.score import Outcome, Score, part, score
from benchmarks.planted.truth import Truth
from moeparity.inputs.machine import cpu_name

Decoy = tuple[Case, Truth, decoys.Answer, Score]

HOW = f"""\
## How to read it

- **Cases never seen before.** What is true of a case was settled on others, those with numbers under 300, and 300 to
  459 were those of an earlier page. These, from {FIRST} on, were drawn once, from an empty folder, and asked once. Two
  hidden patches were put right behind that, both on Mixtral: its products are not rounded where their sum is fp32,
  which is part of the answer, and two rows in another order are the same sum, which is no case.
- **Decoys.** Both sides run one small checkpoint; {LEAST} to {MOST} attributes differ. What each costs is known before
  moeparity runs: an independent script (`benchmarks/planted/ops.py`, `program.py`, `factorial.py`, which share no code
  with moeparity) evaluates every mixture of both sides, and judges from these costs alone (`truth.py`). An attribute
  without effect is shown to have none in every mixture. Culprits make a tenth of the divergence or more and lower it
  when restored; toggles are *saturated*, interchangeable, where each alone makes half of it and leaves half when
  restored (but no more than 1.25 of it: such a one cancels others), and there are at least two.
- Costs of the truth are means over {CHUNKS * SEQUENCES} sequences of {TOKENS} tokens, sampled from the candidate;
  moeparity is given the first {SEQUENCES} of them. *Share within its interval* asks whether the share over all
  sequences lies in the report's 95 % interval; *over those given* whether the exact share over moeparity's own
  sequences does, which tests the orders it drew. Both are widened by twice the stated standard error of these.
- **Undecided** is what moeparity calls so: the sequences do not tell, by its 95 % intervals. A case is *right* where
  everyone to blame is named in their role and no innocent is, *undecided* where that fails only of toggles that it
  calls undecided, *wrong* otherwise. KLs in bf16 rest on few sequences, so that half of the whole is often not surely
  more than a quarter (`search/roles.py`, `stands_in`). *Largest share* is of those blamed; where nobody is, it fails.
- **Drawn again** were draws whose truth is unclear: a share between 5 and 15 % of the whole, an attribute near
  saturation (40 to 60 %) or near cancelling others (115 to 140 %), one that changes less than a tenth of the sequences
  when restored, and what so few sequences could not tell: a culprit whose share or effect is less than four standard
  errors (over as many sequences as are given) from 0, or saturation that the given sequences do not show. All of that
  is decided by the truth, before moeparity runs. In fp32 experts add little to the residual stream (`damped`): else a
  single token whose experts change costs as much as thousands of roundings, and shares rest on a handful of tokens.
- **Hidden.** The candidate is a transformers model of which one line was changed; every node of the graph is computed
  by its own submodules (`impl:`), so moeparity is not told what was changed. *Node*: the first root is the node that
  holds the line, and there is no other root. *Name*: of the known choices and faults that give every bit
  (`moeparity/bisection/nearest`) one is the change, or none is named where the change is none of them. *Another named*
  would be a wrong name.
- *CPU s* is processor time of one case without imports, *MB* what is written for it.
"""
PEERS = """\
- **Peers** get the same pairs: dumps of every module of both sides. They name a place, not a share; *place* counts
  where what the tool itself points at lies in a module to blame, *first difference* the same of the first thing that
  differs at all in what it wrote, *all found* where that is the only one to blame. moeparity is told which
  attributes differ in the decoys, the peers are not; in the hidden suite both see a model and no more, and where a
  single line differs the first difference is enough to find its module, with any tool. Peers get the first cases of
  each suite; *the same* is moeparity on these. msprobe also flags a node that differs in dtype and in no value, which
  some of the attributes without effect are. DebugMode pairs calls by position and gives no verdict where one side has a
  cast more.
"""
NO_PEERS = """\
- **Peers** (`benchmarks/peers`) were not asked in this run; `--venv` asks them on the first pairs of each suite.
  `docs/generated/peers.md` has what they say of other pairs.
"""


def page(folder: Path) -> str:
    """The whole page as Markdown."""
    done, hidden_cases = list(_decoys(folder / "decoys")), list(_hidden(folder / "hidden"))
    same = [d for d in done if d[0].number in peers.numbers(folder / "decoys")]
    same_asked = [x for x in hidden_cases if x[0].number in peers.numbers(folder / "hidden")]
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers"))
    machine = f"{cpu_name()}, {os.cpu_count()} cores, one thread; {versions}, Python {platform.python_version()}"
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    parts = [
        "# Planted culprits",
        f"Written by `python -m scripts.pages planted` (`--check` compares) on {today}; {machine}.",
        f"## Decoys: {len(done)} cases",
        _decoy_table(done),
        _redrawn(folder / "decoys"),
        _peer_table(folder / "decoys", [_own_decoys("moeparity", done), _own_decoys("moeparity, the same", same)]),
        f"## Hidden: {len(hidden_cases)} cases",
        _hidden_table(hidden_cases),
        _peer_table(
            folder / "hidden", [_own_hidden("moeparity", hidden_cases), _own_hidden("moeparity, the same", same_asked)]
        ),
        HOW + (PEERS if same or same_asked else NO_PEERS).strip(),
        "## Misses",
        "\n".join([*_decoy_misses(done), *_hidden_misses(hidden_cases)]) or "None.",
        "## Undecided",
        "\n".join(_undecided(done)) or "None.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _decoys(folder: Path) -> Iterable[Decoy]:
    for path in sorted(folder.glob("*/answer.json")):
        case, truth = load(path.parent)
        answer = decoys.answer_of(json.loads(path.read_text("utf-8")))
        yield case, truth, answer, score(case, truth, answer)


def _hidden(folder: Path) -> list[tuple[Hidden, hidden.Answer]]:
    answers = [(int(p.parent.name), json.loads(p.read_text("utf-8"))) for p in sorted(folder.glob("*/answer.json"))]
    return [(hidden_case(number), hidden.answer_of(data)) for number, data in answers]


def _decoy_table(done: Sequence[Decoy]) -> str:
    head = ["background", "cases", *get_args(Outcome), *_OF_TOGGLES]
    head += ["share within its interval", "over those given", "median error of a share", "largest share"]
    lines = [_row(head), _row(["---"] * len(head))]
    for name in ("fp32", "bf16", "mixed", "all three"):
        of_background = [d for d in done if d[0].background != "clean" and name in {d[0].background, "all three"}]
        if of_background:
            lines.append(_row([name, str(len(of_background)), *_decoy_cells([d[3] for d in of_background])]))
    clean = [d[3] for d in done if d[0].background == "clean"]
    counts = Counter(len(d[1].culprits) for d in done if d[0].background in {"fp32", "mixed"})
    words = ", ".join(f"{count} with {number}" for number, count in sorted(counts.items()))
    return "\n".join(lines) + (
        f"\n\nClean pairs: {len(clean)}, false alarms {sum(each.alarm for each in clean)}. Culprits in fp32 and mixed "
        f"cases: {words}. Whole divergence: {_wholes(done)}."
    )


_OF_TOGGLES: Mapping[str, Callable[[Score], Sequence[str]]] = {
    "to blame: named": lambda each: each.toggles_named,
    "of these undecided": lambda each: each.undecided,
    "missed": lambda each: each.missed,
    "innocents blamed": lambda each: each.blamed,
}


def _decoy_cells(scores: Sequence[Score]) -> list[str]:
    errors = sorted(error for each in scores for error in each.errors)
    toggles = [[key for each in scores for key in keys_of(each)] for keys_of in _OF_TOGGLES.values()]
    return [
        *(str(sum(each.outcome == outcome for each in scores)) for outcome in get_args(Outcome)),
        *(str(len(keys)) for keys in toggles),
        part([share for each in scores for share in each.shares]),
        part([share for each in scores for share in each.shares_given]),
        f"{errors[len(errors) // 2]:.1%}" if errors else "-",
        part([each.top for each in scores]),
    ]


def _wholes(done: Sequence[Decoy]) -> str:
    equal = [abs(answer.whole - truth.given) <= 1e-9 * truth.given for case, truth, answer, _ in done]
    return f"moeparity's KL is the independent script's to nine digits in {part(equal)}"


def _redrawn(folder: Path) -> str:
    reasons: Counter[str] = Counter()
    for path in sorted(folder.glob("*/redrawn.json")):
        reasons.update(json.loads(path.read_text("utf-8")))
    words = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
    return f"Drawn again before moeparity ran: {words}." if words else ""


def _hidden_table(cases: Sequence[tuple[Hidden, hidden.Answer]]) -> str:
    groups = {
        "in the vocabulary": [x for x in cases if x[0].patch and x[0].patch.answers],
        "not in the vocabulary": [x for x in cases if x[0].patch and not x[0].patch.answers],
        "clean": [x for x in cases if not x[0].patch],
        "all": list(cases),
    }
    lines = [
        "| the change is | cases | node right | name right | none named | another named |",
        "|---|---|---|---|---|---|",
    ]
    for title, group in groups.items():
        names = Counter(answer.name(case) for case, answer in group)
        nodes = part([answer.right_node(case) for case, answer in group])
        right = part([answer.name(case) == "right" for case, answer in group])
        lines.append(_row([title, str(len(group)), nodes, right, str(names["none"]), str(names["another"])]))
    faithful = part([answer.faithful for _, answer in cases])
    return "\n".join(lines) + f"\n\nNode by node, the candidate has the patched model's own logits in {faithful}."


def _own_decoys(name: str, done: Sequence[Decoy]) -> list[str]:
    guilty = [d for d in done if d[0].background != "clean"]
    clean = [d[3] for d in done if d[0].background == "clean"]
    if not done:
        return []
    return [
        name,
        str(len(done)),
        part([d[3].top for d in guilty]),
        part([_root(d[1], d[2]) for d in guilty]),
        part([d[3].outcome == "right" for d in guilty]),
        part([each.alarm for each in clean]),
        f"{sum(d[2].seconds for d in done) / len(done):.1f}",
        f"{sum(d[2].bytes for d in done) / len(done) / 1e6:.2g}",
    ]


def _root(truth: Truth, answer: decoys.Answer) -> bool:
    guilty = [key.rpartition(":")[0] for key in truth.culprits | truth.saturated]
    return any(matches(selector, root) for selector in guilty for root in answer.roots[:1])


def _own_hidden(name: str, cases: Sequence[tuple[Hidden, hidden.Answer]]) -> list[str]:
    guilty, clean = [x for x in cases if x[0].patch], [x for x in cases if not x[0].patch]
    if not cases:
        return []
    nodes = part([answer.right_node(case) for case, answer in guilty])
    return [
        name,
        str(len(cases)),
        nodes,
        nodes,
        nodes,
        part([bool(answer.roots) for _, answer in clean]),
        f"{sum(answer.seconds for _, answer in cases) / len(cases):.1f}",
        f"{sum(answer.bytes for _, answer in cases) / len(cases) / 1e6:.2g}",
    ]


def _peer_table(folder: Path, own_rows: Sequence[list[str]]) -> str:
    head = ("tool", "cases", "place", "first difference", "all found", "false alarms", "CPU s", "MB")
    lines = [_row(head), _row(["---"] * len(head)), *(_row(cells) for cells in own_rows if cells)]
    for each in peers.rows(folder):
        cells = [each.tool, str(each.cases), each.top, each.first, each.all_found, each.alarms]
        lines.append(_row([*cells, f"{each.seconds:.1f}", f"{each.megabytes:.2g}"]))
    zeros = [f"{each.tool} {each.zero}" for each in peers.rows(folder) if each.zero != "-"]
    return "\n".join(lines) + (f"\n\nExit code 0 although the sides differ: {'; '.join(zeros)}." if zeros else "")


def _decoy_misses(done: Sequence[Decoy]) -> Iterable[str]:
    for case, truth, answer, outcome in done:
        wrong = [
            f"{key} is {answer.roles.get(key)}, {_true_role(truth, key)}" for key in (*outcome.missed, *outcome.blamed)
        ]
        if wrong or outcome.alarm:
            yield f"- decoy {case.number} ({case.background}, {case.family}): {'; '.join(wrong) or 'false alarm'}."


def _undecided(done: Sequence[Decoy]) -> Iterable[str]:
    for case, truth, _, outcome in done:
        if outcome.undecided:
            words = "; ".join(f"{key}, {_true_role(truth, key)}" for key in outcome.undecided)
            yield f"- decoy {case.number} ({case.background}, {case.family}): {words}."


def _true_role(truth: Truth, key: str) -> str:
    return "a culprit" if key in truth.culprits else "interchangeable" if key in truth.saturated else "innocent"


def _hidden_misses(cases: Sequence[tuple[Hidden, hidden.Answer]]) -> Iterable[str]:
    for case, answer in cases:
        if not (answer.right_node(case) and answer.name(case) == "right"):
            name = case.patch.name if case.patch else "clean"
            words = ", ".join(answer.named) or f"none of the {answer.tried} tried, nearest {answer.nearest}"
            yield f"- hidden {case.number} ({case.family}, {name}, {case.node}): roots {answer.roots}, {words}."


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
