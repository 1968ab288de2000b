"""Recorded routes in every form an engine writes them, and one bad file per mistake."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save, save_file

from moeparity.errors import TokensError
from moeparity.inputs.tokens.routelog import read_routes

ROWS = np.array([[[0, 3], [5, 1]], [[2, 1], [4, 0]], [[7, 6], [1, 2]]])
"""Three tokens, two layers, top 2."""
IDS = [11, 12, 13, 14]


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def npy(array: np.ndarray[Any, Any], **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def npz() -> bytes:
    file = io.BytesIO()
    np.savez(file, a=ROWS, b=ROWS)
    return file.getvalue()


def lines(path: Path, *records: Mapping[str, Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    return path


SGLANG_META = {"id": "3f1c", "prompt_tokens": 2, "completion_tokens": 2}
FORMS: dict[str, dict[str, Any]] = {
    "ours": {"id": "a", "input_ids": IDS, "routed_experts": [*ROWS.tolist(), None]},
    "nested": {"input_ids": IDS, "routed_experts": ROWS.tolist()},
    "sglang": {
        "output_ids": IDS[2:],
        "meta_info": {**SGLANG_META, "routed_experts": b64(ROWS.astype("<i4").tobytes())},
    },
    "vllm": {
        "id": "cmpl-1",
        "prompt_token_ids": IDS[:2],
        "choices": [{"index": 0, "token_ids": IDS[2:], "routed_experts": b64(npy(ROWS.astype("uint8")))}],
    },
    "prime-rl": {
        "prompt_token_ids": IDS[:2],
        "choices": [
            {
                "token_ids": IDS[2:],
                "routed_experts": {
                    "data": b64(ROWS.astype("<u2").tobytes()),
                    "shape": [3, 2, 2],
                    "start": 0,
                    "dtype": "uint16",
                },
            }
        ],
    },
    "without a dtype": {
        "input_ids": IDS,
        "routed_experts": {"data": b64(ROWS.astype("<i4").tobytes()), "shape": [3, 2, 2]},
    },
    "nemo-gym": {
        "prompt_token_ids": IDS[:2],
        "generation_token_ids": IDS[2:],
        "routed_experts": f"nrlre1:uint8:3x2x2:{b64(ROWS.astype('uint8').tobytes())}",
    },
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_the_same_routes(tmp_path: Path, form: str) -> None:
    (sequence,) = read_routes(lines(tmp_path / "a.jsonl", FORMS[form]), top_k=2)
    assert sequence.routes.dtype == torch.int64
    assert sequence.routes[:3].tolist() == ROWS.tolist()
    assert sequence.routes[3].tolist() == [[-1, -1], [-1, -1]], "engines do not run the last token"
    expected = {"completion": (13, 14)} if form == "sglang" else {"sequence": tuple(IDS)}
    assert (sequence.tokens, sequence.id) == (expected, "a" if form == "ours" else None)


DENSE = np.insert(ROWS, 0, 0, axis=1)
"""The same below a dense layer, of which SGLang and vLLM write zeros."""


def test_dense_layers_are_left_out_and_counted(tmp_path: Path) -> None:
    recorded = meta(routed_experts=b64(DENSE.astype("<i4").tobytes()))
    (sequence,) = read_routes(lines(tmp_path / "a.jsonl", recorded), top_k=2)
    assert (sequence.routes[:3].tolist(), sequence.layers) == (ROWS.tolist(), (1, 2))
    (sparse,) = read_routes(lines(tmp_path / "a.jsonl", record(routed_experts=[*DENSE.tolist(), None])))
    assert (sparse.routes.tolist(), sparse.layers) == (sequence.routes.tolist(), (1, 2))
    (plain,) = read_routes(lines(tmp_path / "a.jsonl", record()))
    assert plain.layers == (0, 1)


def test_with_one_expert_per_token_a_layer_of_zeros_may_be_routes(tmp_path: Path) -> None:
    (sequence,) = read_routes(lines(tmp_path / "a.jsonl", record(routed_experts=[[[0], [5]]] * 3)))
    assert (sequence.routes[:3].tolist(), sequence.layers) == ([[[0], [5]]] * 3, (0, 1))


def test_signed_bytes_with_a_missing_route(tmp_path: Path) -> None:
    signed = ROWS.astype("int8")
    signed[1] = -1
    packed = f"nrlre1:int8:3x2x2:{b64(signed.tobytes())}"
    (sequence,) = read_routes(lines(tmp_path / "a.jsonl", record(routed_experts=packed)))
    assert sequence.routes[:3].tolist() == signed.tolist()


def test_arrays_and_tensors(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", ROWS.astype("uint8"))
    np.save(tmp_path / "block.npy", np.stack([ROWS, ROWS[::-1]]))
    assert [sequence.routes.tolist() for sequence in read_routes(tmp_path / "one.npy")] == [ROWS.tolist()]
    assert [sequence.routes.tolist() for sequence in read_routes(tmp_path / "block.npy")] == [
        ROWS.tolist(),
        ROWS[::-1].tolist(),
    ]
    block = torch.from_numpy(ROWS).unsqueeze(0)
    save_file({"routed_experts": block.int(), "input_ids": torch.tensor([IDS[:3]])}, tmp_path / "a.safetensors")
    (sequence,) = read_routes(tmp_path / "a.safetensors")
    assert (sequence.routes.tolist(), sequence.tokens) == (ROWS.tolist(), {"sequence": tuple(IDS[:3])})
    mask = torch.tensor([[1, 1, 0]])
    save_file({"routed_experts": block, "attention_mask": mask}, tmp_path / "padded.safetensors")
    (padded,) = read_routes(tmp_path / "padded.safetensors")
    assert padded.routes[:, 0, 0].tolist() == [0, 2, -1]


def record(**fields: Any) -> dict[str, Any]:
    return {"input_ids": IDS, "routed_experts": ROWS.tolist(), **fields}


def meta(**fields: Any) -> dict[str, Any]:
    return {"meta_info": {**SGLANG_META, "routed_experts": b64(ROWS.astype("<i4").tobytes()), **fields}}


def envelope(**fields: Any) -> dict[str, Any]:
    return record(routed_experts={"data": b64(bytes(12)), "shape": [3, 2, 2], "dtype": "uint8", **fields})


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "none": ({"input_ids": IDS}, "no routed_experts. Ask the engine for them"),
    "a number": (record(routed_experts=3), "routed_experts is 3; expected lists, base64, or data with a shape"),
    "ragged": (record(routed_experts=[[[0, 1]], [[0]]]), r"is not \[tokens\]\[MoE layers\]\[top_k\]"),
    "no base64": (record(routed_experts="%%%"), "is not base64: '%%%'"),
    "pickled inside": (
        record(routed_experts=b64(npy(np.array([{"a": 1}], dtype=object), allow_pickle=True))),
        "it holds pickled objects",
    ),
    "floats inside": (record(routed_experts=b64(npy(ROWS / 1.0))), r"float64 \[3, 2, 2\]; expected integers"),
    "four axes inside": (record(routed_experts=b64(npy(ROWS[None]))), r"\[1, 3, 2, 2\]; expected integers"),
    "no shape": (meta(), "is 12 numbers without a shape. Give --top-k"),
    "rows": (record(input_ids=IDS[:2]), "has 3 rows; expected one for each of 2 tokens, or for all but the last"),
    "twice the same": (record(routed_experts=[[[1, 1]]] * 3), r"sends a token to \[1, 1\]; expected .* by number\.$"),
    "a token of zeros": (
        record(routed_experts=[[[0, 3]], [[0, 0]], [[2, 1]]]),
        r"sends a token to \[0, 0\]; .* nothing, expected is null or -1; a replay of zeros is one of expert 0\.$",
    ),
    "nothing recorded": (
        record(routed_experts=[[[0, 0], [0, 0]]] * 3),
        "every id of routed_experts is 0: nothing was recorded. Check the engine's capture",
    ),
    "token words": (record(input_ids=["a"]), "input_ids is no list of token ids"),
    "id a list": (record(id=[1]), "id is a list; expected a word or a whole number"),
    "short data": (envelope(data=b64(bytes(11))), r"holds 11 bytes; shape \[3, 2, 2\] of uint8 takes 12"),
    "start": (envelope(start=2), "starts at row 2; expected all rows from 0"),
    "dtype": (envelope(dtype="float16"), "has dtype 'float16'; expected one of uint8"),
    "no data": (envelope(data=None), "a mapping without data and shape"),
    "nemo": (record(routed_experts="nrlre1:uint8:3x2:"), r"holds 0 bytes; shape \[3, 2\]"),
    "nemo shape": (record(routed_experts="nrlre1:uint8"), "is not nrlre1:<dtype>:<S>x<L>x<K>:<base64>"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_line_is_told_with_its_number(tmp_path: Path, name: str) -> None:
    line, message = BAD[name]
    with pytest.raises(TokensError, match=rf"log\.jsonl:2: .*{message}"):
        read_routes(lines(tmp_path / "log.jsonl", record(), line))


FLAT: dict[str, tuple[dict[str, Any], int, str]] = {
    "does not divide": (meta(), 8, r"no layers of 3 tokens x top 8 in int32. Check --top-k"),
    "no number of tokens": ({"routed_experts": b64(bytes(48))}, 2, "does not say of how many tokens"),
}


@pytest.mark.parametrize("name", FLAT)
def test_flat_numbers(tmp_path: Path, name: str) -> None:
    data, top_k, message = FLAT[name]
    with pytest.raises(TokensError, match=message):
        read_routes(lines(tmp_path / "log.jsonl", data), top_k=top_k)


_ROUTES = torch.zeros(1, 3, 1, 1, dtype=torch.int64)
FILES: dict[str, tuple[str, bytes | None, str]] = {
    "nowhere": ("nowhere.jsonl", None, "no such file of recorded routes"),
    "a folder": ("folder.npy", None, "cannot be read: it is a folder"),
    "a pickle": ("a.pt", b"", "a pickle, which can run any code, is not read"),
    "empty": ("a.jsonl", b"", "holds no routes"),
    "not UTF-8": ("a.jsonl", b"\xff", "byte 0 is not UTF-8"),
    "not JSON": ("a.jsonl", b"{", "a.jsonl:1: not JSON"),
    "a list": ("a.jsonl", b"[]", "a list is no sequence"),
    "no array": ("a.npy", b"nothing", "not a .*npy array of numbers"),
    "pickled": ("a.npy", npy(np.array([{}], dtype=object), allow_pickle=True), "it holds pickled objects"),
    "two axes": ("a.npy", npy(ROWS[0]), r"int64 \[2, 2\]; expected integers \[tokens, layers, top_k\] or \[sequences"),
    "several arrays": ("a.npy", npz(), "not one array; expected what numpy.save writes"),
    "no safetensors": ("a.safetensors", b"nothing", "not a safetensors file"),
    "other tensors": ("b.safetensors", save({"routes": torch.zeros(1)}), "holds no routed_experts; it has routes"),
    "floats": (
        "b.safetensors",
        save({"routed_experts": torch.zeros(1, 3, 1, 1)}),
        r"is torch\.float32; expected integers",
    ),
    "other ids": (
        "b.safetensors",
        save({"routed_experts": _ROUTES, "input_ids": torch.zeros(1, 2, dtype=torch.int64)}),
        r"input_ids is \[1, 2\]; expected \[1, 3\], as routed_experts",
    ),
}


def refuse(folder: Path, name: str) -> None:
    """Read the bad file of that name."""
    file, content, _ = FILES[name]
    if name == "a folder":
        (folder / file).mkdir()
    if content is not None:
        (folder / file).write_bytes(content)
    read_routes(folder / file)


@pytest.mark.parametrize("name", FILES)
def test_files_that_are_none(tmp_path: Path, name: str) -> None:
    with pytest.raises(TokensError, match=FILES[name][2]):
        refuse(tmp_path, name)


def refusals(folder: Path) -> list[TokensError]:
    """The error of each bad line and file here, for tests/errors."""
    log = folder / "log.jsonl"
    calls: list[Callable[[], object]] = [
        *(partial(lambda line: read_routes(lines(log, record(), line)), line) for line, _ in BAD.values()),
        *(partial(lambda line, k: read_routes(lines(log, line), top_k=k), line, k) for line, k, _ in FLAT.values()),
        *(partial(refuse, folder, name) for name in FILES),
    ]
    messages = []
    for call in calls:
        with pytest.raises(TokensError) as caught:
            call()
        messages.append(caught.value)
    return messages
