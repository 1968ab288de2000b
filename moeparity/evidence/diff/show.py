"""Where two traces begin to differ: the verdict, what it starts with, how it grows, what was compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from moeparity.errors import counted
from moeparity.evidence.diff.report import Birth, DiffReport, LegalOrders, Start, TraceOutline
from moeparity.output.blocks import (
    Column,
    Document,
    Group,
    Row,
    Status,
    Table,
    bullets,
    columns,
    group,
    names,
    stacked,
    surplus,
    table,
    thinned,
)
from moeparity.output.status import state_of
from moeparity.output.words import enumerated, few

_STARTS = 6
_SHAPES_SHOWN = 2
_KINDS_SHOWN = 6
_MOVES = (
    "_to_copy", "arange", "cat", "clone", "copy_", "empty_like", "eq", "expand", "index", "le", "gt", "nonzero",
    "scalar_tensor", "sort", "where", "zeros", "zeros_like", "_unsafe_view", "ones", "full", "scatter_", "index_put_",
    "_local_scalar_dense", "aminmax", "floor_divide", "sub", "histc", "cumsum",
)  # fmt: skip
"""Calls that are not told of where others are."""
_KINDS = {
    "module": "its inputs have equal bits, what it gives has not; no ops were recorded in it",
    "weight": "another weight is read",
    "input": "the programs were given other inputs",
    "unseen": "made by what was not recorded",
    "wiring": "both programs have both values, so it is wired otherwise (or these two calls do not correspond)",
}
_ORDERS = {
    "inside": "rounding order can explain it: other orders of the same sums lie as far apart",
    "inside one way": "B lies within A's orders, A outside B's: B is more precise",
    "outside": "no drawn order of A's sums gives what B gives: precision, form or weights differ",
}
_FUNCTIONS = {
    "inside": "nothing is added up in it; two implementations of its functions may lie as far apart",
    "inside one way": "nothing is added up in it; B lies where implementations of A's functions do, A not where B's do",
    "outside": "nothing is added up in it, and no implementation of its functions gives what B gives: precision, form, "
    "arguments or weights differ",
}


def document(report: DiffReport, subject: str) -> Document:
    """A comparison of two traces, verdict first."""
    return Document(command="diff", subject=subject, blocks=(_status(report), *_groups(report)))


def two_digits(report: DiffReport, subject: str) -> Document:
    """The same for a pull request."""
    rows = [(str(i + 1), headline(start), start.orders.verdict) for i, start in enumerate(report.starts[:_STARTS])]
    titles = Column(" ", "word"), Column("starts", "name"), Column("orders", "word")
    starts = [table(titles, rows)] if rows else []
    return Document(command="diff", subject=subject, blocks=(_status(report), *starts, bullets(report.words)))


def _status(report: DiffReport) -> Status:
    text = f"{report.reason}; exit {report.exit_code}"
    return Status(state_of(report.exit_code), text, lines=tuple(summary(report)))


def summary(report: DiffReport) -> Iterator[tuple[str, str]]:
    """The lines below the verdict: what each is of, and what it says."""
    if report.starts and report.status == "inconclusive":
        first = report.starts[0]
        yield "starts", f"with the dtype: {first.dtypes[0]} in A, {first.dtypes[1]} in B, {_at(first.path)}"
        yield "grows", _worst(report)
    elif report.starts:
        yield "starts", headline(report.starts[0])
        if any(start.kind == "op" for start in report.starts):
            yield "orders", _orders_line(report)
    elif report.padding_start:
        yield "starts", f"nowhere at a token; in padding at {report.padding_start}"
    else:
        yield "starts", "nowhere in what was compared"
    if report.ends:
        yield "ends", f"after {report.ends}: what the programs give at last is equal, so differences cancel"
    one_sided = [birth for birth in report.births if birth.side != "both"]
    if report.births:
        yield "born", _born(one_sided[0] if one_sided else report.births[0])
    coverage = report.coverage
    rest = f", {coverage.uncovered:,} not (see below)" if coverage.uncovered else ""
    yield "seen", f"{coverage.compared:,} of {counted(coverage.values, 'value')} of A compared{rest}"


def _worst(report: DiffReport) -> str:
    """The layer that leaves the largest error."""
    measured = [layer for layer in report.growth if layer.furthest is not None]
    if not measured:
        return "can't be told: whole values of no layer were kept"
    worst = max(measured, key=lambda layer: layer.furthest or 0.0)
    units = "" if worst.units is None else f", {worst.units:.2g} times what rounding makes of a row at most"
    return f"to a row error of {worst.furthest:.2g} after {worst.layer}{units}"


def headline(start: Start) -> str:
    """`model.layers.0.mlp.gate: from equal inputs by mm in A, by 2 calls (_to_copy and mm) in B, 3 of 32 rows`."""
    extent = ""
    if start.dtypes[0] != start.dtypes[1] and not start.differing:
        extent = "equal once rounded to the narrower"
    elif start.differing or start.rows:
        extent = f"{start.differing or start.rows:,} of {counted(start.rows, 'row')}"
    parts = [_calls(start), extent] if extent else [_calls(start)]
    if start.tokens:
        parts.append(f"{counted(start.tokens, 'token')}")
    if start.position is not None:
        parts.append(_position(start))
    if start.sets is not None:
        parts.append(f"other sets in {start.sets:,} of them, other slots in {start.slots:,}")
    if start.scalars:
        parts.append(enumerated(start.scalars))
    if start.shapes:
        parts.append(few(list(start.shapes), _SHAPES_SHOWN))
    return f"{_where(start)}: {', '.join(parts)}"


def _where(start: Start) -> str:
    """`layers[0].moe.gate (model.layers.0.mlp.gate)`."""
    path = start.path or "outside modules"
    return f"{start.node} ({path})" if start.node else path


def _position(start: Start) -> str:
    """`first token 7 of sequence 1, in pass 0 of A and pass 4 (behind a cache) of B`."""
    assert start.position is not None
    passes = [
        f"pass {number}{' (behind a cache)' * behind} of {name}"
        for name, number, behind in zip("AB", start.passes, start.position.behind_cache, strict=True)
    ]
    return f"first token {start.position.token} of sequence {start.position.sequence}, in {' and '.join(passes)}"


def _calls(start: Start) -> str:
    """Which calls lie between equal values and the differing one."""
    dtypes = f"{start.dtypes[0]} in A, {start.dtypes[1]} in B"
    if start.kind in {"weight", "input", "unseen"}:
        return f"{dtypes if start.dtypes[0] != start.dtypes[1] else _KINDS[start.kind]}, at {start.slot}"
    if start.kind == "wiring":
        return f"{start.slot} reads another value"
    ours, theirs = (_call_words(calls) for calls in (start.ops_a, start.ops_b))
    if start.kind == "behind":
        by = ours if ours == theirs else f"{ours} in A, {theirs} in B"
        return f"{by} on inputs that differ already (on B's inputs no drawn order of A's calls gives what B gives)"
    if start.dtypes[0] != start.dtypes[1]:
        return f"{ours} ({dtypes})"
    if start.unread:
        by = ours if ours == theirs else f"{ours} in A, {theirs} in B"
        return f"{by}: {counted(start.unread, 'input')} can't be compared, the others have equal bits"
    if ours == theirs:
        return f"{ours} on equal inputs gives other bits"
    return f"from equal inputs by {ours} in A, by {theirs} in B"


def _call_words(calls: Sequence[str]) -> str:
    """A call by its op and class; of several how many, and which of them compute."""
    names = [call.rpartition(" ")[2].removeprefix("aten.").removesuffix(".default") for call in calls]
    if not names:
        return "no call (a value that it had before)"
    if len(names) == 1:
        return names[0]
    computing = [name for name in names if name.partition(".")[0] not in _MOVES]
    kinds = list(dict.fromkeys(computing or names))
    return f"{len(names)} calls ({few(kinds, _KINDS_SHOWN)})"


def _orders_line(report: DiffReport) -> str:
    first = next(start for start in report.starts if start.kind == "op")
    text = _order_words(first.orders)
    if report.beyond is not None and first.orders.verdict != "outside":
        text += f"; the first that no drawn order gives is {headline(report.beyond)}"
    return text


def _order_words(orders: LegalOrders) -> str:
    if orders.verdict == "not told":
        return f"can't be told: {orders.reason}"
    words = (_ORDERS if orders.sums else _FUNCTIONS)[orders.verdict]
    return f"{orders.verdict}: {words}" + (f" ({orders.reason})" if orders.reason else "")


def _born(birth: Birth) -> str:
    where = "both traces" if birth.side == "both" else f"{birth.side} only"
    return f"{birth.what} {_at(birth.path)} {birth.op}, in {where}"


def _at(path: str) -> str:
    return f"at {path}" if path else "outside modules,"


def _groups(report: DiffReport) -> Iterator[Group]:
    yield group("Traces", names([("A", _outline(report.a)), ("B", _outline(report.b))]))
    if report.starts:
        yield group("Where differences begin", _starts(report))
    if report.growth:
        yield group("What leaves each layer", _growth(report))
    if report.births:
        yield group("Not finite", bullets(_born(birth) for birth in report.births))
    if report.other_scalars:
        yield group("Arguments that differ", bullets(report.other_scalars))
    if report.ranks:
        yield group("Ranks that are no replicas", bullets(report.ranks))
    yield group("What was compared", bullets(report.words))
    sentences = list(_notes(report))
    if sentences:
        yield group("What the traces do not show", bullets(sentences))


def _notes(report: DiffReport) -> Iterator[str]:
    """What either trace says of itself, once."""
    for note in dict.fromkeys((*report.a.notes, *report.b.notes)):
        names = [name for name, trace in (("A", report.a), ("B", report.b)) if note in trace.notes]
        yield note if len(names) == 2 else f"{names[0]}: {note}"


def _outline(trace: TraceOutline) -> str:
    cut = "" if trace.whole else ", cut before its end"
    ranks = f"{counted(trace.ranks, 'rank')}, " if trace.ranks > 1 else ""
    return f"{trace.path} ({trace.made_by}; {ranks}{counted(trace.calls, 'call')}{cut})"


def _starts(report: DiffReport) -> Table:
    of, below = columns("rows", "tokens", "row error", first="where"), surplus(len(report.starts) - _STARTS)
    return stacked(of, map(_start, report.starts[:_STARTS]), *below)


def _start(start: Start) -> Row:
    error = "-" if start.furthest is None else f"{start.furthest:.2g}"
    cells = f"{start.differing or start.rows:,}/{start.rows:,}", str(start.tokens or "-"), error
    return Row((_where(start), *cells), tuple(_below(start)))


def _below(start: Start) -> Iterator[str]:
    yield f"{_calls(start)}: {_KINDS[start.kind]}" if start.kind in {"module", "wiring"} else _calls(start)
    yield f"{start.dtypes[0]} {list(start.shape)}, {start.phase} of step {start.step}" + (
        f", rank {start.rank}" if start.rank else ""
    )
    if start.first_tokens:
        yield f"tokens at {few([str(token) for token in start.first_tokens], 8)}"
    if start.sets is not None:
        yield f"ids: {counted(start.sets, 'row')} with other sets, {start.slots:,} with other slots"
    if start.scalars:
        yield f"arguments: {enumerated(start.scalars)}"
    if start.shapes:
        yield f"other shapes, no numbers of which are compared: {few(list(start.shapes), _SHAPES_SHOWN)}"
    if start.unread:
        yield (
            f"{counted(start.unread, 'input')} of these calls can't be compared: another weight or another part of one "
            "may be read"
        )
    if start.orders.verdict != "not told":
        yield (
            f"orders: {_order_words(start.orders)} ({start.orders.outside:,} of {start.orders.differing:,} differing "
            f"elements outside, at most {start.orders.furthest:.2g} ulp; from fp64 A {start.orders.error_a:.1e}, "
            f"B {start.orders.error_b:.1e})"
        )
    for name, stack in (("A", start.stack_a), ("B", start.stack_b)):
        if stack:
            yield f"{name} at {stack[-1]}"


def _growth(report: DiffReport) -> Table:
    with_units = any(layer.units is not None for layer in report.growth)
    titles = ("differing", "rows", "row error", *(("in units of rounding",) if with_units else ()))
    peaks = sorted(range(len(report.growth)), key=lambda i: -(report.growth[i].furthest or 0))[:4]
    shown, note = thinned(report.growth, peaks)
    rows = []
    for layer in shown:
        error = "-" if layer.furthest is None else f"{layer.furthest:.3g}"
        units = ("-" if layer.units is None else f"{layer.units:.3g}",) if with_units else ()
        rows.append((layer.layer, f"{layer.differing:,}", f"{layer.rows:,}", error, *units))
    return table(columns(*titles, first="layer"), rows, *note)
