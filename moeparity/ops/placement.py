"""How an op is cut over ranks, and the all-reduce that adds up partial sums.

Values in a graph are whole, as if gathered; a rank's own part exists inside a kernel only. The exception is a value in
partial sums, one for each rank, before its all-reduce: it has an axis of ranks behind that of the batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from moeparity.numerics.collectives import nccl
from moeparity.numerics.collectives.declaration import Collective, Evidence, Level
from moeparity.numerics.collectives.registry import COLLECTIVES, SELECTIONS, find, scattering
from moeparity.numerics.order_map import EveryPart, Message, Selection
from moeparity.numerics.orders import EXPLICIT, parse
from moeparity.ops.attribute import ABOVE_1, Attribute, Condition, Value, site
from moeparity.ops.declaration import ChoiceElsewhere, Cut, Op, Refusals, Role, Tokens, WeightPort
from moeparity.ops.memory import Call, Memory, Shapes, stored

NONE = "none"
STAGE, GOES_ON, ENDS = "stage", "goes_on", "ends"
"""Whether a stage of a pipeline ends at a node."""
HANDS_ON, SUM, APART = "hands_on", "sum", "apart"
"""What it sends to the next stage."""

TENSOR = Attribute(
    name="tensor",
    kind="placement",
    default=1,
    least=1,
    says="over how many ranks it is cut (tensor parallel); each rank runs its own part with that part's shapes",
)
BLOCKS = Attribute(
    name="blocks",
    kind="form",
    default=0,
    least=0,
    says="cut into this many fixed blocks whatever the number of ranks, each block computed on its own, so that the "
    "bits do not depend on the degree (tensor-parallel invariant); 0: one block for each rank",
)
AFTER, SHARED, FIRST = "after", "shared", "first"
BIAS = Attribute(
    name="bias",
    kind="form",
    default=AFTER,
    values=(AFTER, SHARED, FIRST),
    needs="partials",
    weight="bias",
    says="a row-wise bias is added to the reduced sum (Megatron-LM); or every rank's GEMM adds its part, the bias "
    "divided by the number of ranks and rounded to its own dtype (torch's DTensor); or the first rank's GEMM adds it "
    "(vLLM, SGLang)",
)
PARTIAL = site("partial", "a rank's partial sum is rounded to this dtype before it is reduced", needs="partials")


def cut(values: Mapping[str, Value]) -> int:
    """Pieces of an op with `tensor` and `blocks`; 1 where it has neither."""
    return int(values.get("blocks", 0) or values.get("tensor", 1))


def refuse_pieces(values: Mapping[str, Value], sizes: Mapping[str, int]) -> tuple[str, str] | None:
    """Refuses blocks that ranks cannot share, and sizes that do not divide."""
    tensor, blocks, pieces = int(values["tensor"]), int(values["blocks"]), cut(values)
    if blocks % tensor:
        return "blocks", f"{blocks} blocks cannot be shared by {tensor} ranks. Set a multiple of {tensor}."
    for noun, size in sizes.items():
        if size % pieces:
            name = "blocks" if blocks else "tensor"
            unit = "blocks" if blocks else "ranks"
            return name, f"{size} {noun} do not divide by {pieces} {unit}."
    return None


_WHOLE: Condition = {"reduce": ("now",), "sequence": ("whole",)}
_CHANNELS: Condition = {**_WHOLE, "collective": (nccl.RING.name, nccl.TREE.name)}
_TREE: Condition = {**_WHOLE, "collective": (nccl.TREE.name,)}
_CHANNELS_SOURCE = Evidence("read", "NVIDIA/nccl 5067397c26 src/enqueue.cc")
_TREES_SOURCE = Evidence("read", "NVIDIA/nccl 5067397c26 src/graph/{connect,trees}.cc")
_PROTOCOLS = ("simple", "ll", "ll128")
_PATTERNS = ("balanced_tree", "split_tree", "tree")
_NCCL = (
    Attribute(
        name="channels",
        kind="form",
        default=1,
        least=1,
        sources={"1": _CHANNELS_SOURCE},
        needs="partials",
        when=_CHANNELS,
        says="over how many channels NCCL cuts the message, each with chunks of its own. NCCL finds the number by the "
        "topology and takes fewer for a small message; NCCL_MIN_NCHANNELS and NCCL_MAX_NCHANNELS pin it "
        f"({_CHANNELS_SOURCE.source}, read)",
    ),
    Attribute(
        name="protocol",
        kind="form",
        default="simple",
        values=_PROTOCOLS,
        sources=dict.fromkeys(_PROTOCOLS, _CHANNELS_SOURCE),
        needs="partials",
        when=_CHANNELS,
        says="NCCL's protocol (NCCL_PROTO), by which channels and chunks end elsewhere. A ring's chunks have at most 2 "
        "MiB (simple), 32 KiB (ll) or 562.5 KiB (ll128); ll also cuts the channels more finely "
        f"({_CHANNELS_SOURCE.source}, read)",
    ),
    Attribute(
        name="node",
        kind="form",
        default=0,
        least=0,
        sources={"0": _TREES_SOURCE},
        needs="partials",
        when=_TREE,
        says="ranks of one node, in turn; 0: all are on one. Across nodes NCCL has two trees, of which the second half "
        f"of the channels takes the second ({_TREES_SOURCE.source}, read)",
    ),
    Attribute(
        name="pattern",
        kind="form",
        default="balanced_tree",
        values=_PATTERNS,
        sources=dict.fromkeys(_PATTERNS, _TREES_SOURCE),
        needs="partials",
        when={**_TREE, "node": (ABOVE_1,)},
        says="which ranks of a node's chain take up the sums of two other nodes: the second one of them and the first "
        "the other (balanced_tree), the second both (split_tree), or the first both (tree). NCCL goes by topology, "
        f"and takes tree where nodes have one rank ({_TREES_SOURCE.source}, read)",
    ),
)


def one_tree(values: Mapping[str, Value]) -> bool:
    """Whether the collective adds the ranks of every element in one order, however long the message is."""
    name = str(values["collective"])
    if name == nccl.TREE.name:
        return not values.get("node", 0) or values.get("channels", 1) == 1
    names = dict.fromkeys(use for _, use in SELECTIONS[name].rows) if name in SELECTIONS else (name,)
    maps = [COLLECTIVES[use].order_map for use in names]
    steps = {(str(m.order), m.accumulate, m.output, m.from_zero, m.inputs) for m in maps}
    return len(steps) == 1 and all(isinstance(m.order, EveryPart) for m in maps)


def _sees_rows(values: Mapping[str, Value], params: Mapping[str, Any]) -> bool:
    """A library's cut and its choice depend on the length of the message, which contains all tokens."""
    if values.get("collective", NONE) == NONE:
        return False
    return values["sequence"] == "scattered" or not one_tree(values)


def _refuses(shapes: Shapes, values: Mapping[str, Value]) -> tuple[str, str] | None:
    """Refuses a collective that does not run on so many ranks, or leaves the sum elsewhere, and an order for another
    number.
    """
    ranks = shapes["partials of x"][0]
    name = values.get("collective", NONE)
    if ranks == 1:
        return None
    if values["reduce"] == "later":
        if "bias" not in shapes or values["bias"] != AFTER:
            return None
        return "reduce", f"the GEMM before it leaves the bias to it. Set `bias: {SHARED}` or `{FIRST}` there."
    if name == NONE:
        order = parse(str(values["order"]))
        if order.leaves not in {None, ranks}:
            return "order", f"{order} adds up {order.leaves} values, and there are {ranks} ranks."
        if order.fma:
            return "order", "fma contracts products, and partial sums are none."
        return None
    if name not in COLLECTIVES:
        return _refuse_table(SELECTIONS[str(name)], ranks, str(values["message"]))
    collective = COLLECTIVES[str(name)]
    if values["sequence"] == "scattered":
        if scattering(collective) is None:
            has = [c.name for c in COLLECTIVES.values() if c.scatters]
            return "collective", f"{name} has no reduce-scatter here; sequence parallel knows {', '.join(has)}."
    elif collective.scatters:
        return "collective", f"{name} scatters its sum, which `sequence: scattered` (sequence parallel) asks for."
    if values["message"] not in collective.dtypes:
        dtypes = ", ".join(collective.dtypes)
        return "collective", f"{name} is known for {dtypes}, and the partial sums are {values['message']}."
    if collective.worlds and ranks not in collective.worlds:
        return "collective", f"{name} runs on {', '.join(map(str, collective.worlds))} ranks, not on {ranks}."
    node = int(values.get("node", 0))
    return ("node", f"{ranks} ranks do not divide by {node} on each node.") if node and ranks % node else None


def _refuse_table(table: Selection, ranks: int, dtype: str) -> tuple[str, str] | None:
    """Refuses a table that chooses nothing for so many ranks. The size of the message is known only in a run."""
    collectives = [COLLECTIVES[use] for when, use in table.rows if when.ranks is None or ranks in when.ranks]
    if any(dtype in c.dtypes and (not c.worlds or ranks in c.worlds) for c in collectives):
        return None
    return "collective", f"{table.name} chooses nothing for {ranks} ranks and partial sums in {dtype}."


def collective_of(values: Mapping[str, Any], message: Message) -> Collective:
    """What adds up a message of the ranks' partial sums: an all-reduce, or a reduce-scatter if the sum is scattered.
    Raises ValueError if a table chooses nothing for it, or something without a reduce-scatter.
    """
    collective = find(str(values["collective"]), message)
    if values["sequence"] == "whole":
        return nccl.as_set(
            collective,
            channels=values.get("channels", 1),
            protocol=values.get("protocol", "simple"),
            node=values.get("node", 0),
            pattern=values.get("pattern", "balanced_tree"),
            ranks=message.ranks,
        )
    scatters = scattering(collective)
    if scatters is None:
        raise ValueError(
            f"{collective.name}, which adds up a message of {message.bytes:,} bytes, has no reduce-scatter here, which "
            "`sequence: scattered` (sequence parallel) asks for"
        )
    return scatters


def _refuses_call(call: Call) -> tuple[str, str] | None:
    """Refuses a message that no row of a table takes, or that its library does not take."""
    values, width = call.active, call.outputs[0]
    ranks = call.inputs[0] // width
    if ranks == 1 or values.get("collective", NONE) == NONE:
        return None
    message = Message(call.tokens * width, call.input_bytes[0], ranks, width, call.arch)
    try:
        collective = collective_of(values, message)
        if not collective.scatters:
            collective.check(message, call.message or call.input_dtype)
    except ValueError as error:
        return "collective", f"{error}. Set another `collective`."
    return None


def _partials(pieces: int, values: Mapping[str, Value], params: Mapping[str, Any], inputs: Sequence[int]) -> int:
    return inputs[0] if values["reduce"] == "later" else 1


def _evidence() -> dict[str, Evidence]:
    """The evidence of collectives; for a table, the least sure of the collectives that it chooses among."""
    levels: tuple[Level, ...] = get_args(Level)
    sources = {name: collective.evidence for name, collective in COLLECTIVES.items()}
    for name, table in SELECTIONS.items():
        names = dict.fromkeys(use for _, use in table.rows)
        level = max((sources[use].level for use in names), key=levels.index)
        sources[name] = Evidence(level, f"chooses among {', '.join(names)}")
    return sources


def _output_bytes(call: Call) -> Sequence[int]:
    """A value that only passes keeps its dtype."""
    return stored(call) if "output" in call.active else [call.input_bytes[0]]


def _scratch(call: Call) -> int:
    return 2 * call.wide * call.tokens * call.inputs[0] if "output" in call.active else 0


ALL_REDUCE = Op(
    name="all_reduce",
    says="Sum of the ranks' partial sums [B, ranks, T, H] -> [B, T, H]; a value that is whole, [B, T, H], passes by.",
    inputs=("x",),
    weights=(
        WeightPort(name="bias", says="[H], added to the sum; a whole x has it already", required=False, initial=0.0),
    ),
    attributes=(
        Attribute(
            name="reduce",
            kind="form",
            default="now",
            values=("now", "later"),
            needs="partials",
            says="here, or after the partial sums were added to others: one all-reduce for routed and shared experts",
        ),
        Attribute(
            name="collective",
            kind="order",
            default=NONE,
            values=(NONE, *SELECTIONS, *COLLECTIVES),
            sources=_evidence(),
            needs="partials",
            redrawn=False,
            when={"reduce": ("now",)},
            says="the library's algorithm, or the table it chooses by; `none`: `order` and `accumulate` say all",
        ),
        *_NCCL,
        Attribute(
            name="order",
            kind="order",
            default="sequential",
            values=EXPLICIT,
            order=True,
            needs="partials",
            when={"reduce": ("now",), "collective": (NONE,)},
            says="in which order the ranks are added, the same for every element",
        ),
        site(
            "accumulate",
            "every addition is rounded to this dtype",
            needs="partials",
            when={"reduce": ("now",), "collective": (NONE,)},
        ),
        Attribute(
            name="sequence",
            kind="placement",
            default="whole",
            values=("whole", "scattered"),
            needs="partials",
            when={"reduce": ("now",)},
            says="every rank gets the whole sum, or a part of its tokens (sequence parallel): the library's "
            "reduce-scatter of the message laid out by destination, which the next GEMM gathers",
        ),
        site(
            "output",
            "the sum, and its sum with the bias, are rounded to this dtype",
            needs="partials",
            when={"reduce": ("now",)},
        ),
    ),
    tokens=Tokens(sees_rows=_sees_rows),
    refusals=Refusals(values=_refuses, call=_refuses_call),
    cut=Cut(partials=_partials, takes_partials=("x",)),
    role=Role(reduces=True),
    memory=Memory(output_bytes=_output_bytes, scratch=_scratch),
    choices_elsewhere={"bias": ChoiceElsewhere(port="x", default=AFTER)},
    kernel="placement:all_reduce",
    source="Megatron-LM d98e8a64dd core/tensor_parallel/layers.py RowParallelLinear; moeparity.numerics.collectives",
)
