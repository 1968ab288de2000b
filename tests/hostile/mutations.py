"""Changes of good files: of bytes, and of what a file of text or tensors means."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from random import Random
from typing import Any

import yaml
from safetensors.torch import save

_BYTES = (
    b"",
    b"\x00",
    b"\xff",
    b"[",
    b"]",
    b"{",
    b"}",
    b'"',
    b"*",
    b"&a",
    b": ",
    b"- ",
    b"\n",
    b"9",
    b"-",
    b"e9",
    b"\x1b",
)
_TEXTS = (
    *("", "x", "nan", "-1", "1e-6", "true", "null", "../..", "/", "-", "~", "layers[*].moe", "layers[", "bf16", "fp8"),
    *(
        "\x1b]0;owned\x07",
        "\u202egnp",
        "\x9b31m",
        "\x00",
        "\ud800",
        "a" * 3000,
        "9" * 5000,
        "9" * 20,
        "²",
        "{}",
        "${HOME}",
        "%s",
        "!!python/object",
    ),
)
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 7, 33, 1000, 2**31, 2**63, -(2**63), 10**30),
    *(0.0, -0.0, 1e-45, 1e-6, 0.5, 1e300, -2.5, float("nan"), float("inf"), float("-inf")),
    *([], {}, [[]], [1], ["a"], {"a": 1}, [None], {"type": "linear", "factor": 2}),
)


def of_bytes(raw: bytes, random: Random) -> bytes:
    """A few bytes dropped, repeated, moved or replaced; now and then the end is missing."""
    data = bytearray(raw)
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(data) + 1)
        kind = random.randrange(6)
        if kind == 0:
            del data[at:]
        elif kind == 1:
            data[at:at] = data[at : at + random.randrange(200)]
        elif kind == 2 and data:
            data[at % len(data)] ^= 1 << random.randrange(8)
        else:
            data[at : at + random.choice((0, 1, 1, 2, 8, 40))] = random.choice(_BYTES)
    return bytes(data)


def of_tree(value: Any, random: Random) -> Any:
    """A few keys or items dropped, repeated, renamed, exchanged or given a value of another kind."""
    for _ in range(random.randint(1, 3)):
        value = _changed(value, random)
    return value


def _changed(value: Any, random: Random) -> Any:
    if not isinstance(value, dict | list) or not value or random.random() < 0.15:
        return _another(value, random)
    if isinstance(value, list):
        items, at = list(value), random.randrange(len(value))
        kind = random.randrange(5)
        if kind == 0:
            del items[at]
        elif kind == 1:
            items.insert(at, items[random.randrange(len(items))])
        else:
            items[at] = _changed(items[at], random)
        return items
    entries, key = dict(value), random.choice(list(value))
    kind = random.randrange(6)
    if kind == 0:
        del entries[key]
    elif kind == 1:
        entries[random.choice(_TEXTS)] = entries.pop(key)
    elif kind == 2:
        entries[key] = entries[random.choice(list(value))]
    else:
        entries[key] = _changed(entries[key], random)
    return entries


def _another(value: Any, random: Random) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool) and random.random() < 0.5:
        return random.choice((value + 1, value - 1, -value, value * 2, value * 1000, value / 3))
    if isinstance(value, str) and value and random.random() < 0.3:
        at = random.randrange(len(value))
        return value[:at] + random.choice(_TEXTS) + value[at + 1 :]
    return random.choice((*_VALUES, *_TEXTS))


def of_yaml(raw: bytes, random: Random) -> bytes:
    """The tree of a YAML file changed; of several documents one."""
    documents = list(yaml.safe_load_all(raw))
    at = random.randrange(len(documents)) if len(documents) > 1 else 0
    documents[at] = of_tree(documents[at], random)
    return yaml.safe_dump_all(documents, sort_keys=False).encode("utf-8", "surrogatepass")


_FRAGMENTS = (
    *("$(", ")", "$((", "))", "${A:-", "}", "`", '"', "'", "<<EOF", "EOF", "\\\n", "&&", "||", "|", ";", ";;", "&"),
    *(
        "if",
        "then",
        "fi",
        "for i in",
        "do",
        "done",
        "case $A in",
        "esac",
        "A=(",
        'A+=("${A[@]}" "${A[@]}")',
        'A="$A$A"',
    ),
    *("f() {", "f", "eval", "source run.sh", "source serve.sh", "bash -c", "exit", "{1..9}", "[[", "]]", "$@", "${!A}"),
    *("docker run -e A", "ray job submit --", "--config x.yaml", "@ rl.toml", "-m", "vllm serve", "\x00", "\u202e"),
    *("LLM(**A)", "9" * 5000, "lambda:", "[[a]]", "a.b.c = {", "%%", "ExecStart=", "=" * 50, "(" * 80, "x" * 3000),
)


_PTX = (
    *(".reg", ".b8", ".b32", ".u64", ".f32", ".pred", ".param", ".shared", ".global", ".local", ".entry", ".func"),
    *("%r1", "%r<5>", "%p1", "@%p1", "@!%p2", "%tid.x", "%clock", "$L__BB0_1:", "$L__BB0_1", "bra", "ret;", "{", "}"),
    *("[", "]", "(", ")", ";", ",", "|", "!", "-1", "0f3F800000", "0d", "0x", "1e9", "4294967296", "99999999999999999"),
    *(".align 3", ".version 9.9", ".target sm_999", ".address_size 32", "ld.global.v4.u32", "st.shared.u32", "call"),
    *("cvt.rn.f16.f32", "bar.sync 0;", "bar.sync 17;", "shfl.sync.bfly.b32", "brx.idx", "// x", "/*", "[%r1+-4]"),
    *("div.rn.f32", "atom.global.add.u32", "mov.b64 {%r1,%r2},", "= {1, 2, 3}", "wgmma.mma_async", "x" * 3000),
)


def of_kernels(raw: bytes, random: Random) -> bytes:
    """As `of_script`, of PTX."""
    return of_script(raw, random, _PTX)


def of_script(raw: bytes, random: Random, fragments: tuple[str, ...] = _FRAGMENTS) -> bytes:
    """Words and lines of a script dropped, repeated, moved, or made of something that scripts are made of."""
    words = re.split(r"(\s+)", raw.decode())
    for _ in range(random.randint(1, 4)):
        at, second_place = random.randrange(len(words)), random.randrange(len(words))
        kind = random.randrange(5)
        if kind == 0:
            del words[min(at, second_place) : min(at, second_place) + random.randrange(1, 6)]
            words = words or [""]
        elif kind == 1:
            words[at:at] = words[second_place : second_place + random.randrange(1, 12)]
        elif kind == 2:
            words[at] = random.choice((*fragments, *_TEXTS))
        elif kind == 3:
            words[at] += random.choice(fragments)
        else:
            words.insert(at, f" {random.choice(fragments)} ")
    return "".join(words).encode("utf-8", "surrogatepass")


def of_json(raw: bytes, random: Random) -> bytes:
    """The tree of a JSON document changed."""
    return json.dumps(of_tree(json.loads(raw), random)).encode()


def of_lines(raw: bytes, random: Random) -> bytes:
    """One line of JSON changed, dropped, repeated or moved."""
    lines = raw.splitlines(keepends=True)
    at = random.randrange(len(lines))
    kind = random.randrange(6)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(random.randrange(len(lines)), lines[at])
    else:
        lines[at] = of_json(lines[at], random) + b"\n"
    return b"".join(lines)


def of_tensors(raw: bytes, random: Random) -> bytes:
    """One tensor of a safetensors file dropped, cut, turned to another dtype, or with numbers of another kind."""
    import torch
    from safetensors.torch import load

    tensors = load(raw)
    name = random.choice(sorted(tensors))
    tensor = tensors[name].clone()
    kind = random.randrange(6)
    if kind == 0:
        del tensors[name]
    elif kind == 1:
        tensors[name] = tensor.flatten()[: random.randrange(tensor.numel() + 1)].clone()
    elif kind == 2:
        dtypes = (torch.float32, torch.float16, torch.int64, torch.uint8, torch.bool, torch.float8_e4m3fn)
        tensors[name] = tensor.to(random.choice(dtypes))
    elif kind == 3:
        tensors[name] = tensor.flatten().flip(0).view(tensor.shape).contiguous()
    else:
        number = random.choice((0.0, -0.0, 1.0, 1e-40, 3e38, float("nan"), float("inf"), -1.0, 1e9))
        whole = random.random() < 0.5
        values = tensor.flatten()
        values[slice(None) if whole else random.randrange(values.numel())] = _cast(number, tensor)
        tensors[name] = values.view(tensor.shape)
    return save(tensors)


def of_torch(raw: bytes, random: Random) -> bytes:
    """The tree in a file of torch.save changed."""
    import torch

    stream = io.BytesIO()
    torch.save(of_tree(torch.load(io.BytesIO(raw), weights_only=True), random), stream)
    return stream.getvalue()


def of_columns(raw: bytes, random: Random) -> bytes:
    """The rows of a parquet file changed; as bytes where they do not make a table any more."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = of_tree(pq.read_table(io.BytesIO(raw)).to_pylist(), random)
    stream = io.BytesIO()
    try:
        pq.write_table(pa.Table.from_pylist(rows), stream)
    except (pa.ArrowException, AttributeError, KeyError, TypeError, OverflowError, UnicodeError):
        return of_bytes(raw, random)
    return stream.getvalue()


def _cast(number: float, tensor: Any) -> float | int:
    """A number that the tensor's dtype takes."""
    if tensor.dtype.is_floating_point:
        return number
    return int(number) if abs(number) < 1e9 else 7


Mutation = Callable[[bytes, Random], bytes]
TREES: dict[str, Mutation] = {
    ".yaml": of_yaml,
    ".json": of_json,
    ".jsonl": of_lines,
    ".safetensors": of_tensors,
    ".pt": of_torch,
    ".parquet": of_columns,
    ".ptx": of_kernels,
    **dict.fromkeys((".sh", ".py", ".toml", ".service"), of_script),
}


def mutate(name: str, raw: bytes, random: Random) -> bytes:
    """The file changed, as bytes or, if its name says what it holds, as that."""
    tree = next((change for ending, change in TREES.items() if name.endswith(ending)), None)
    if tree is None or random.random() < 0.4:
        return of_bytes(raw, random)
    return tree(raw, random)
