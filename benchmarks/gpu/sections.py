"""What the page says of each part: sentences and tables in Markdown, made of the part's result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

Result = Mapping[str, Any]
"""A part's JSON."""


def cell(value: object) -> str:
    """Text as it can stand in a cell of a table."""
    return " ".join(str(value).split()).replace("|", "\\|").replace("<", "&lt;")


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(map(cell, line)) + " |" for line in lines)


def number(value: float | str, digits: int = 3) -> str:
    """A number to so many digits; JSON has words for those that are not finite."""
    return value if isinstance(value, str) else f"{value:.{digits}g}"


def equality(result: Result) -> Iterator[str]:
    """Models by profile and dtype, then where each row that differs starts to."""
    rows = result["rows"]
    sound = [row for row in rows if not row["different"] and not row["refused"]]
    yield (
        f"{len(sound)} of {len(rows)} rows (model, profile, dtype) have the bits of transformers in logits and in "
        f"every layer's routes, in all cases (sequences x tokens): {'; '.join(result['cases'])}. transformers loads "
        "the model on the CPU and moves it; no key/value cache."
    )
    kinds = list(dict.fromkeys((row["profile"], row["dtype"]) for row in rows))
    models = dict.fromkeys((row["model"], row["model_type"]) for row in rows)
    by_place = {(row["model"], row["profile"], row["dtype"]): row for row in rows}
    yield table(
        ("model", "model_type", *(" ".join(kind) for kind in kinds)),
        ((name, kind, *(_outcome(by_place.get((name, *k))) for k in kinds)) for name, kind in models),
    )
    yield from _differences(rows)
    refusals = [
        (row["model"], row["profile"], row["dtype"], case, words)
        for row in rows
        for case, words in row["refused"].items()
    ]
    if refusals:
        yield "Cases that could not be compared, in the words of what was raised:"
        yield table(("model", "profile", "dtype", "case", "raised"), refusals)


def _outcome(row: Result | None) -> str:
    if row is None:
        return "not run"
    cases = row["equal"] + len(row["different"]) + len(row["refused"])
    parts = [f"{len(row['different'])} of {cases} differ"] if row["different"] else []
    parts += [f"{len(row['refused'])} of {cases} refused"] if row["refused"] else []
    return ", ".join(parts) or "equal"


def _differences(rows: Iterable[Result]) -> Iterator[str]:
    lines = []
    for row in rows:
        for case in row["different"][:1]:
            unsteady = [side for side, same in case["repeatable"].items() if not same]
            repeats = f"{', '.join(unsteady)} gives other bits when run again" if unsteady else "both repeat their bits"
            logits = f"{number(100 * case['share'])} % of logits, at most {number(case['largest'])}"
            place = (row["model"], row["profile"], row["dtype"], case["case"])
            lines.append((*place, logits, *_first(case["first"]), repeats))
    if lines:
        yield (
            "Rows that differ, each by its first case. The first node that differs is looked for among the values that "
            "transformers' modules read and return; the difference starts at this node, or at one of those in the next "
            "column, whose values no module shows."
        )
        columns = ("model", "profile", "dtype", "case", "differs in", "first node that differs", "or before it")
        yield table((*columns, "repeated"), lines)


def _first(first: Result | None) -> tuple[str, str]:
    if first is None:
        return "not looked for", ""
    if first["node"] is None:
        return f"none of {first['compared']} values that modules show", "what follows them"
    place = f"{first['node']} ({first['op']}), {number(100 * first['share'])} % of its elements"
    return place, ", ".join(first["or_before"]) or "none"


def sums(result: Result) -> Iterator[str]:
    """Orders by dtype."""
    rows, hidden = result["shape"]
    yield (
        f"Sums of the rows of [{rows}, {hidden}], every addition rounded to the rows' dtype, in multiples of a copy of "
        "the same bytes; bits compared with the CPU's sums of the first rows. Random normal numbers."
    )
    for dtype, native in result["native"].items():
        rate, copies = number(native["gb_per_s"]), number(native["copies"])
        yield f"{dtype}: a copy moves {rate} GB/s, read and written; torch's own sum takes {copies} copies."
    yield table(
        ("order", "dtype", "bits of the CPU", "copies"),
        (
            (f"`{row['order']}`", row["dtype"], "yes" if row["same_as_cpu"] else "**no**", number(row["copies"]))
            for row in result["rows"]
        ),
    )
    if result["kernels"]:
        yield (
            "Orders that profiles state of torch's kernels, read in their source, against these kernels on fp32 rows: "
            "the fraction of results with other bits. What is 0 in every row is added as stated, as far as these show."
        )
        yield table(
            ("order", "kernel", "rows x hidden", "other bits"),
            (
                (f"`{row['order']}`", f"`{row['kernel']}`", f"{row['rows']} x {row['hidden']}", number(row["share"]))
                for row in result["kernels"]
            ),
        )


def forward(result: Result) -> Iterator[str]:
    """Ours against transformers', by profile."""
    sequences, tokens = result["tokens"]
    yield (
        f"Layers as wide as Qwen3-30B-A3B's: {result['layers']} of {result['experts']} experts, {sequences} x {tokens} "
        f"tokens, bf16, median of {result['repetitions']}, weights in the device's memory, until the logits are on the "
        "CPU."
    )
    columns = ("profile", "load ours, s", "theirs, s", "forward ours, ms", "theirs, ms", "ours / theirs", "same bits")
    yield table(
        columns,
        (
            (
                row["profile"],
                number(row["load_ours"]),
                number(row["load_theirs"]),
                number(1e3 * row["ours"]),
                number(1e3 * row["theirs"]),
                number(row["ours"] / row["theirs"]),
                "yes" if row["same"] else "**no**",
            )
            for row in result["rows"]
        ),
    )


def lockstep(result: Result) -> Iterator[str]:
    """Passes of many variants, in forwards of transformers."""
    sequences, tokens = result["tokens"]
    yield (
        f"{result['layers']} layers of hidden {result['hidden']}, {sequences} x {tokens} tokens, bf16, best of "
        f"{result['repeats']}. One eager forward of transformers takes {number(1e3 * result['transformers'])} ms."
    )
    yield table(
        ("setting", "variants", "lockstep, ms", "separate, ms", "ratio", "in forwards of transformers", "kernel calls"),
        (
            (
                row["setting"],
                row["variants"],
                number(1e3 * row["lockstep"]),
                number(1e3 * row["separate"]),
                number(row["lockstep"] / row["separate"]),
                number(row["lockstep"] / result["transformers"]),
                f"{row['evaluations']} of {row['naive']}, {row['ideal']} by the graph alone",
            )
            for row in result["rows"]
        ),
    )


def streaming(result: Result) -> Iterator[str]:
    """Memory against its bound, throughput against a plain read."""
    memory = {key: f"{value / 1e9:.2f} GB" for key, value in result["memory"].items()}
    variants = int(result["memory"]["variants"])
    sequences, tokens = result["tokens"]
    yield (
        f"Files of {result['size'] / 1e9:.2f} GB, of which a pass reads {result['read'] / 1e9:.2f} GB of weights. A "
        f"bisection of {sequences} x {tokens} tokens by {variants} variants took {memory['taken']} of the device's "
        f"memory beside the {memory['before']} held before; its bound is {memory['bound']} (two layers "
        f"{memory['layers']}, embedding and head {memory['ends']}, values {memory['values']}); "
        f"{memory['estimated']} were estimated before."
    )
    if result["streamed"] is not None:
        yield (
            f"A forward of one token streams {result['streamed'] / 1e9:.2f} GB/s from the files, a plain sequential "
            f"read has {result['plain'] / 1e9:.2f} GB/s: ratio {number(result['streamed'] / result['plain'])} (best of "
            f"{result['repeats']}, the system told to forget the files before each)."
        )


SECTIONS: Mapping[str, tuple[str, Callable[[Result], Iterator[str]]]] = {
    "equality": ("Bits of the `hf-*` profiles against transformers", equality),
    "sums": ("Sums in a stated order", sums),
    "forward": ("A forward against transformers", forward),
    "lockstep": ("Lockstep", lockstep),
    "streaming": ("Weights streamed from files", streaming),
}
"""Titles, and what writes the text, by part."""
