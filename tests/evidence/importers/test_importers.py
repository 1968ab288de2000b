"""What other tools recorded becomes a trace: of their own writers where they run here, else of their layout."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from moeparity.errors import MoeparityError, TraceError
from moeparity.evidence.diff.run import diff
from moeparity.evidence.importers.registry import import_trace
from moeparity.evidence.trace.reader import RankTrace, open_trace
from moeparity.numerics.bits import same_bits
from tests.command import inside
from tests.engines.live import FOLDER

IDS = torch.arange(6).reshape(2, 3)


class Tiny(nn.Module):
    def __init__(self, *, stale: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        random = torch.Generator().manual_seed(0)
        for parameter in self.parameters():
            parameter.data.normal_(generator=random)
        if stale:
            self.get_parameter("layers.1.bias").data[0] += 1.0

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


def _starts(a: Path, b: Path) -> tuple[str, str]:
    report = diff(a, b)
    return report.status, report.starts[0].path if report.starts else ""


def _output(rank: RankTrace, path: str) -> Tensor:
    (call,) = (call for call in rank.contents.calls if call.path == path and call.phase == "forward" and call.outputs)
    tensor = rank.tensor(rank.contents.values[next(iter(call.outputs.values()))])
    assert tensor is not None
    return tensor


def test_the_debugger_of_transformers(tmp_path: Path) -> None:
    from transformers.model_debugging_utils import model_addition_debugger_context

    for name, stale in (("a", False), ("b", False), ("stale", True)):
        program = Tiny(stale=stale)
        with model_addition_debugger_context(
            program, str(tmp_path / f"{name}.d"), do_prune_layers=False, use_repr=False
        ):
            program.forward(input_ids=IDS)
        import_trace("transformers", tmp_path / f"{name}.d", tmp_path / name)
    rank = open_trace(tmp_path / "a").ranks[0]
    assert same_bits(_output(rank, "embed"), Tiny().embed(IDS))
    assert _starts(tmp_path / "a", tmp_path / "b") == ("pass", "")
    assert _starts(tmp_path / "a", tmp_path / "stale") == ("fail", "layers.1")


def test_printed_digits_are_no_bits(tmp_path: Path) -> None:
    from transformers.model_debugging_utils import model_addition_debugger_context

    program = Tiny()
    with model_addition_debugger_context(program, str(tmp_path / "d")):
        program.forward(input_ids=IDS)
    for name in "ab":
        import_trace("transformers", tmp_path / "d", tmp_path / name)
    report = diff(tmp_path / "a", tmp_path / "b")
    assert (report.status, report.coverage.compared) == ("inconclusive", 0)
    assert any("printed digits, which are no bits" in note for note in report.a.notes)


_DUMP = """
import sys, types
import torch
for name, members in {
    "sglang.srt.managers.io_struct": ("sock_recv", "sock_send", "wrap_as_pickle"),
    "sglang.srt.runtime_context": ("get_parallel", "get_server_args", "get_serving"),
    "sglang.srt.utils": ("get_device",),
}.items():
    parts = name.split(".")
    for i in range(1, len(parts) + 1):
        sys.modules.setdefault(".".join(parts[:i]), types.ModuleType(".".join(parts[:i]))).__path__ = []
    for member in members:
        setattr(sys.modules[name], member, lambda *a, **k: None)
import importlib.util
spec = importlib.util.spec_from_file_location("dumper", sys.argv[1])
module = importlib.util.module_from_spec(spec)
sys.modules["dumper"] = module
spec.loader.exec_module(module)
module._plugins.clear() if hasattr(module._plugins, "clear") else None
from tests.evidence.importers.test_importers import IDS, Tiny
config = module.DumperConfig(enable=True, dir=sys.argv[2], exp_name=sys.argv[3], non_intrusive_mode="all")
dumper = module._Dumper(config=config)
program = Tiny(stale=sys.argv[3] == "stale")
dumper.register_non_intrusive_dumper(program)
with torch.no_grad():
    for _ in range(2):
        dumper.dump("input_ids", IDS)
        program(IDS)
        dumper.step()
"""


@pytest.mark.live
def test_the_dumper_of_sglang(tmp_path: Path) -> None:
    dumper = FOLDER / "sglang/sglang/srt/debug_utils/dumper.py"
    if not dumper.is_file() or not (FOLDER / "sglang-arguments").is_dir():
        pytest.skip("no SGLang: python -m tests.engines.live")
    for name in ("a", "stale"):
        path = os.pathsep.join([str(Path(__file__).parents[3]), str(FOLDER / "sglang-arguments")])
        command = [sys.executable, "-W", "ignore", "-c", _DUMP, str(dumper), str(tmp_path / "dumps"), name]
        done = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        import_trace("sglang", tmp_path / "dumps" / name, tmp_path / name)
    rank = open_trace(tmp_path / "a").ranks[0]
    assert {call.path for call in rank.contents.calls} == {"", "embed", *(f"layers.{i}" for i in range(3))}
    assert {call.step for call in rank.contents.calls} == {0, 1}
    report = diff(tmp_path / "a", tmp_path / "stale")
    assert (report.status, report.starts[0].path, report.starts[0].step) == ("fail", "layers.1", 0)


def _dumped(folder: Path, index: int, name: str, value: Any, *, rank: int = 0) -> None:
    folder.mkdir(exist_ok=True)
    meta = {"step": 0, "rank": rank, "dump_index": index, "name": name, "world_rank": rank, "world_size": 2}
    torch.save({"value": value, "meta": meta}, folder / f"step=0___rank={rank}___dump_index={index}___name={name}.pt")


def test_dumps_of_several_ranks_are_ranks(tmp_path: Path) -> None:
    for rank in range(2):
        _dumped(tmp_path / "d", 1, "input_ids", IDS.reshape(-1), rank=rank)
        _dumped(tmp_path / "d", 2, "non_intrusive__model.layers.0.output", torch.ones(6, 8) * rank, rank=rank)
        _dumped(tmp_path / "d", 3, "rids", ["a", "b"], rank=rank)
    import_trace("sglang", tmp_path / "d", tmp_path / "t")
    ranks = open_trace(tmp_path / "t").ranks
    assert [rank.head.rank for rank in ranks] == [0, 1]
    assert same_bits(_output(ranks[1], "model.layers.0"), torch.ones(6, 8))
    assert "1 files hold no tensor" in ranks[0].contents.notes[0]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_tensor_without_numbers_is_left_out_and_counted(tmp_path: Path) -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    absent = torch.empty(2, device="meta"), torch.eye(2).to_sparse(), nested
    for index, tensor in enumerate((torch.ones(2), *absent), start=1):
        _dumped(tmp_path / "d", index, f"non_intrusive__model.layers.{index}.output", tensor)
    import_trace("sglang", tmp_path / "d", tmp_path / "t")
    contents = open_trace(tmp_path / "t").ranks[0].contents
    assert len(contents.values) == 1
    assert contents.notes[0].startswith("3 files hold no tensor and were left out")


def test_a_conjugate_is_its_own_bits(tmp_path: Path) -> None:
    plain = torch.view_as_complex(torch.randn(3, 2))
    _dumped(tmp_path / "d", 1, "non_intrusive__rope.output", plain.conj())
    import_trace("sglang", tmp_path / "d", tmp_path / "t")
    assert same_bits(_output(open_trace(tmp_path / "t").ranks[0], "rope"), plain.conj().resolve_conj())


def test_a_dump_whose_file_is_lost_makes_no_whole_trace(tmp_path: Path) -> None:
    for index, name in (
        (1, "input_ids"),
        (2, "non_intrusive__model.layers.0.output"),
        (4, "non_intrusive__model.output"),
    ):
        _dumped(tmp_path / "d", index, name, torch.ones(6, 8))
    import_trace("sglang", tmp_path / "d", tmp_path / "t")
    contents = open_trace(tmp_path / "t").ranks[0].contents
    assert not contents.whole
    assert "1 of the dumper's calls left no file: what they held is not here." in contents.notes
    assert diff(tmp_path / "t", tmp_path / "t").status == "inconclusive"


def test_hidden_states_of_vllm_are_compared_by_token(tmp_path: Path) -> None:
    states = torch.randn(5, 2, 8).bfloat16()
    changed_states = states.clone()
    changed_states[3, 1] += 1
    for name, value in (("a", states), ("b", changed_states)):
        (tmp_path / f"{name}.d").mkdir()
        tensors = {"hidden_states": value, "token_ids": torch.tensor([4, 7, 1, 9, 2])}
        save_file(tensors, tmp_path / f"{name}.d" / "cmpl-0.safetensors")
        import_trace("vllm", tmp_path / f"{name}.d", tmp_path / name)
    report = diff(tmp_path / "a", tmp_path / "b")
    first = report.starts[0]
    assert (report.status, first.path, first.first_tokens) == ("fail", "hidden_states.1", (3,))


def test_a_request_that_vllm_still_writes_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "r.safetensors"
    save_file({"hidden_states": torch.zeros(1, 1, 2), "token_ids": torch.zeros(1).long()}, file)
    with (tmp_path / "r.safetensors.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(TraceError, match="vLLM is still writing it"):
            import_trace("vllm", file, tmp_path / "t")


def _msprobe(folder: Path, *, ending: str = ".pt", stale: bool = False) -> Path:
    """The files of mindstudio-probe 26.2.0 at level mix, task tensor."""
    tensors = folder / "step0" / "rank0" / "dump_tensor_data"
    tensors.mkdir(parents=True)

    def leaf(name: str, value: Tensor) -> dict[str, Any]:
        if ending == ".npy":
            np.save(tensors / f"{name}.npy", value.numpy())
        elif ending:
            torch.save(value, tensors / f"{name}.pt")
        plain = {"type": "torch.Tensor", "dtype": str(value.dtype), "shape": list(value.shape), "Max": 1.0, "Min": 0.0}
        return plain | ({"data_name": f"{name}{ending}"} if ending else {"md5": "0badc0de"})

    program = Tiny(stale=stale)
    data: dict[str, Any] = {}
    construct: dict[str, str | None] = {}
    x = program.embed.weight.data[IDS]
    for number, layer in enumerate(program.layers):
        assert isinstance(layer, nn.Linear)
        y = torch.nn.functional.linear(x, layer.weight.data, layer.bias.data)
        module, op = f"Module.layers.{number}.Linear.forward.0", f"Functional.linear.{number}.forward"
        weights = [leaf(f"{op}.input.{i}", value) for i, value in enumerate((x, layer.weight.data, layer.bias.data))]
        data[op] = {"input_args": weights, "input_kwargs": {}, "output": [leaf(f"{op}.output.0", y)]}
        data[module] = {
            "input_args": [leaf(f"{module}.input.0", x)], "input_kwargs": {}, "output": [leaf(f"{module}.output.0", y)],
            "parameters": {"weight": leaf(f"{module}.parameters.weight", layer.weight.data)},
        }  # fmt: skip
        construct |= {op: module, module: None}
        x = torch.relu(y)
    document = {"task": "tensor", "level": "mix", "framework": "pytorch", "dump_data_dir": "/gone", "data": data}
    (tensors.parent / "dump.json").write_text(json.dumps(document))
    (tensors.parent / "construct.json").write_text(json.dumps(construct))
    return folder


@pytest.mark.parametrize("ending", [".pt", ".npy"])
def test_dumps_of_msprobe(tmp_path: Path, ending: str) -> None:
    import_trace("msprobe", _msprobe(tmp_path / "d", ending=ending), tmp_path / "a")
    import_trace("msprobe", _msprobe(tmp_path / "e", ending=ending, stale=True), tmp_path / "b")
    report = diff(tmp_path / "a", tmp_path / "b")
    first = report.starts[0]
    assert (report.status, first.kind, first.path) == ("fail", "weight", "layers.1")
    assert first.slot == "2 of Functional.linear"


def test_statistics_of_msprobe_are_not_compared(tmp_path: Path) -> None:
    for name in "ab":
        import_trace("msprobe", _msprobe(tmp_path / f"{name}.d", ending=""), tmp_path / name)
    report = diff(tmp_path / "a", tmp_path / "b")
    assert (report.status, report.coverage.compared) == ("inconclusive", 0)


def test_what_is_nested_too_deeply_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From Python 3.12 on `json` reads deeper than functions may call each other."""
    (tmp_path / "M_debug_tree_FULL_TENSORS.json").touch()
    outputs: list[Any] = []
    for _ in range(2000):
        outputs = [outputs]
    tree = {"module_path": "M", "outputs": outputs}
    monkeypatch.setattr("moeparity.evidence.importers.transformers.read_json", lambda *_: tree)
    with pytest.raises(TraceError, match="nested deeper than any program"):
        import_trace("transformers", tmp_path, tmp_path / "t")


class _Evil:
    def __reduce__(self) -> Any:
        return os.system, ("echo run > ran",)


_TREES: dict[str, Any] = {
    "no tree": [],
    "no node": {"module_path": "M", "children": [{"inputs": None}]},
    "no children": {"module_path": "M", "children": 1e308},
    "digits": {
        "module_path": "M",
        "outputs": {"shape": f"torch.Size([{'9' * 5000}])", "dtype": "torch.float32", "value": "x"},
    },
}
"""Trees that the debugger of transformers does not write."""


def _broken(folder: Path, kind: str) -> None:
    folder.mkdir()
    if kind == "pickle":
        torch.save({"value": _Evil(), "meta": {}}, folder / "step=0___rank=0___dump_index=1___name=x.pt")
    elif kind == "name":
        torch.save({"value": IDS}, folder / "layer0.pt")
    elif kind == "bare":
        torch.save(IDS, folder / "step=0___rank=0___dump_index=1___name=x.pt")
    elif kind == "keys":
        save_file({"logits": torch.zeros(2)}, folder / "r.safetensors")
    elif kind == "no safetensors":
        (folder / "r.safetensors").write_bytes(b"nothing")
    elif kind == "no data":
        (folder / "dump.json").write_text("{}")
    elif kind == "outside":
        leaf = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [1], "data_name": "../x.pt"}
        entry = {"input_args": [leaf], "input_kwargs": {}, "output": []}
        (folder / "dump.json").write_text(json.dumps({"data": {"Torch.relu.0.forward": entry}}))
    elif kind in _TREES:
        (folder / "M_debug_tree_FULL_TENSORS.json").write_text(json.dumps(_TREES[kind]))
    elif kind == "elsewhere":
        save_file({"data": torch.zeros(1)}, folder.parent / "x.safetensors")
        leaf = {"shape": "torch.Size([1])", "dtype": "torch.float32", "value": "./../x.safetensors"}
        (folder / "M_debug_tree_FULL_TENSORS.json").write_text(json.dumps({"module_path": "M", "outputs": leaf}))
    elif kind == "shape":
        scalar: dict[str, object] = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": 3}
        (folder / "dump.json").write_text(json.dumps({"data": {"Torch.relu.0.forward": {"input_args": [scalar]}}}))
    elif kind == "header":
        (folder / "dump_tensor_data").mkdir()
        header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (".ljust(117) + b"\n"
        (folder / "dump_tensor_data" / "x.npy").write_bytes(b"\x93NUMPY\x01\x00v\x00" + header)
        leaf = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [1], "data_name": "x.npy"}
        (folder / "dump.json").write_text(json.dumps({"data": {"Torch.relu.0.forward": {"input_args": [leaf]}}}))


@pytest.mark.parametrize(
    ("tool", "kind", "message"),
    [
        ("sglang", "pickle", "weights_only=True, and is read in no other way"),
        ("sglang", "name", "the name says no step, rank, dump_index and name"),
        ("sglang", "bare", "expected a mapping with `value` and `meta`"),
        ("sglang", "", "no *.pt file"),
        ("vllm", "keys", "it holds logits"),
        ("vllm", "no safetensors", "no safetensors file"),
        ("vllm", "", "no *.safetensors file"),
        ("msprobe", "no data", "no `data`; expected dump.json"),
        ("msprobe", "outside", "leads out of the folder"),
        ("msprobe", "", "no dump.json in it"),
        ("transformers", "no tree", "no JSON object"),
        ("transformers", "no node", "a node without module_path"),
        ("transformers", "no children", "children of the model are no list of nodes"),
        ("transformers", "digits", "expected a torch.Size"),
        ("transformers", "elsewhere", "leads out of the folder"),
        ("msprobe", "shape", "0 has shape 3; expected a list of sizes"),
        ("msprobe", "header", "no array of numbers that can be read without pickle"),
        ("transformers", "", "0 files"),
        ("sglan", "", "Did you mean 'sglang'?"),
    ],
)
def test_files_that_are_not_what_they_should_be(tmp_path: Path, tool: str, kind: str, message: str) -> None:
    _broken(tmp_path / "d", kind)
    with pytest.raises(MoeparityError, match=re.escape(message)):
        import_trace(tool, tmp_path / "d", tmp_path / "t")
    assert not (tmp_path / "ran").exists()
    assert not Path("ran").exists()


def test_the_command(tmp_path: Path) -> None:
    _dumped(tmp_path / "d", 1, "non_intrusive__lm_head.output", torch.ones(2, 3))
    done = inside("import", "sglang", tmp_path / "d", "--out", tmp_path / "t", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "t: 2 calls, 1 value\n"), done.stderr
    again = inside("import", "sglang", tmp_path / "d", "--out", tmp_path / "t", cwd=tmp_path)
    assert again.returncode == 2
    assert "there is something already" in again.stderr
    absent = inside("import", "sglang", tmp_path / "gone", "--out", tmp_path / "u", cwd=tmp_path)
    assert "gone: does not exist" in absent.stderr
