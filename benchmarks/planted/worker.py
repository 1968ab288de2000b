"""One peer on many cases: `python -m benchmarks.planted.worker TOOL SUITE FOLDER OUT NUMBER ..` in its environment.

torch and transformers are imported once; each side of each case is run, and compared, in a process forked from there,
as a tool's own command would after its imports. Writes a line of JSON for each case and setting.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils._debug_mode import DebugMode

from benchmarks.peers import debug_mode, msprobe_compare, sglang_comparator
from benchmarks.peers.environment import bytes_in
from benchmarks.peers.result import Result
from benchmarks.peers.run_debug_mode import first_difference, plain, verdict
from benchmarks.planted.programs import SIDES, pair, run

SGLANG = {"default": None, "max_abs <= 0": "max_abs <= 0"}
MSPROBE = {
    "tensor, L0": ("tensor", False),
    "CRC-32, L0, -da": ("statistics", True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What a tool said of a case.

    hit, first_hit: where it points, and the first difference in what it wrote, lie in a module to blame; None where it
    points nowhere. clean: nobody is to blame. guilty: how many places are.
    """

    tool: str
    number: int
    clean: bool
    guilty: int
    verdict: str
    place: str
    hit: bool | None
    first: str
    first_hit: bool | None
    code: int | None
    seconds: float
    written: int


def main() -> None:
    """Run one tool on the cases named."""
    tool, suite, folder, out, *numbers = sys.argv[1:]
    torch.set_num_threads(1)
    with Path(out).open("a", encoding="utf-8") as file:
        for number in map(int, numbers):
            modules, ids, blamed = pair(suite, number, Path(folder))
            guilty = [place for each in blamed.values() for place in each]
            with tempfile.TemporaryDirectory() as scratch:
                for result in TOOLS[tool](modules, ids, Path(scratch)):
                    line = Line(
                        tool=result.tool,
                        number=number,
                        clean=not guilty,
                        guilty=len(blamed),
                        verdict=result.verdict,
                        place=result.location,
                        hit=_hit(result.places, guilty),
                        first=result.first,
                        first_hit=_hit(result.first_places, guilty),
                        code=result.code,
                        seconds=result.seconds,
                        written=result.written,
                    )
                    file.write(json.dumps(asdict(line)) + "\n")
                    file.flush()


def _hit(places: tuple[str, ...], guilty: list[str]) -> bool | None:
    if not places:
        return None
    inside = [place.removeprefix("before ") for place in places]
    return any(
        place == place_planted or place.startswith(f"{place_planted}.") for place in inside for place_planted in guilty
    )


def forked(work: Callable[[], object]) -> tuple[int, float]:
    """Exit code and CPU seconds of some work in a process of its own; its output is thrown away."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            work()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        except BaseException:  # noqa: BLE001 - the child ends here, whatever it was
            traceback.print_exc()
        os._exit(code)
    _, status, used = os.wait4(child, 0)
    return os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime


def sglang(modules: dict[str, Any], ids: torch.Tensor, folder: Path) -> Iterator[Result]:
    """Both sides dumped, then compared at the default threshold and at exact equality."""
    seconds = 0.0
    for side in SIDES:
        seconds += forked(partial(_dump_sglang, modules[side], ids, folder / side))[1]
    written = bytes_in(folder)
    for number, (setting, predicate) in enumerate(SGLANG.items()):
        report = folder / f"report{number}.jsonl"
        arguments = ["--baseline-path", str(folder / "reference" / "run"), "--target-path"]
        arguments += [str(folder / "candidate" / "run"), "--output-format", "json", "--report-path", str(report)]
        arguments += [] if predicate is None else ["--diff-threshold", ".*", predicate]
        code, more_seconds = forked(partial(_command, "sglang.srt.debug_utils.comparator.__main__", arguments))
        name = f"SGLang comparator ({setting})"
        if not report.exists():
            yield Result(tool=name, verdict=f"failed to run: exit {code}", code=code)
            continue
        records = [json.loads(line) for line in report.read_text("utf-8").splitlines()]
        yield sglang_comparator.read(
            records, tool=name, code=code, seconds=seconds + more_seconds, written=written + report.stat().st_size
        )


def _dump_sglang(module: Any, ids: torch.Tensor, folder: Path) -> None:
    os.environ |= {
        "DUMPER_ENABLE": "1",
        "DUMPER_NON_INTRUSIVE_MODE": "all",
        "DUMPER_ENABLE_OUTPUT_CONSOLE": "0",
        "DUMPER_DIR": str(folder),
        "DUMPER_EXP_NAME": "run",
    }
    dumper = importlib.import_module("sglang.srt.debug_utils.dumper").dumper
    dumper.register_non_intrusive_dumper(module)
    run(module, ids)
    dumper.step()


def _command(module: str, arguments: list[str]) -> None:
    sys.argv = [module, *arguments]
    runpy.run_module(module.removesuffix(".__main__"), run_name="__main__", alter_sys=True)


def msprobe(modules: dict[str, Any], ids: torch.Tensor, folder: Path) -> Iterator[Result]:
    """Tensors at module level; and CRC-32 with first-difference analysis."""
    for number, (setting, (task, analyse)) in enumerate(MSPROBE.items()):
        run_folder, seconds = folder / str(number), 0.0
        for side in SIDES:
            config = msprobe_compare._write_config(  # noqa: SLF001 - the sister benchmark's
                run_folder, side, msprobe_compare.Setting(setting, task, "L0", analyse)
            )
            seconds += forked(partial(_dump_msprobe, modules[side], ids, config))[1]
            step = run_folder / side / "step0"
            next(step.glob("proc*")).rename(step / "rank0")
        steps = [("-tp", run_folder / "candidate" / "step0"), ("-gp", run_folder / "reference" / "step0")]
        arguments = ["compare", "-o", str(run_folder / "out")]
        for flag, step in steps:
            arguments += [flag, str(step if analyse else step / "rank0" / "dump.json")]
        arguments += ["-da"] if analyse else []
        code, more_seconds = forked(partial(_command, "msprobe.msprobe", arguments))
        others: dict[str, Any] = {
            "tool": f"msprobe compare ({setting})",
            "code": code,
            "seconds": seconds + more_seconds,
            "written": bytes_in(run_folder),
        }
        try:
            rows = msprobe_compare._analysed if analyse else _rows  # noqa: SLF001 - the sister benchmark's
            yield rows(run_folder, others)
        except StopIteration:
            yield Result(verdict=f"failed to run: exit {code}", **others)


def _rows(run_folder: Path, others: dict[str, Any]) -> Result:
    return msprobe_compare.read_rows(msprobe_compare._rows(run_folder), **others)  # noqa: SLF001


def _dump_msprobe(module: Any, ids: torch.Tensor, config: Path) -> None:
    debugger = importlib.import_module("msprobe.pytorch").PrecisionDebugger(config_path=str(config))
    debugger.start(model=module)
    run(module, ids)
    debugger.stop()
    debugger.step()


def debug(modules: dict[str, Any], ids: torch.Tensor, folder: Path) -> Iterator[Result]:
    """Both sides logged in one process, then paired call by call."""

    def work() -> None:
        logs = [_logged(modules[side], ids) for side in SIDES]
        output = {"calls": len(logs[0]), **verdict(*logs), "difference": first_difference(*map(plain, logs))}
        (folder / "found.json").write_text(json.dumps(output), "utf-8")

    code, seconds = forked(work)
    tool = "torch DebugMode (norm and hash_tensor)"
    if not (folder / "found.json").exists():
        yield Result(tool=tool, verdict=f"failed to run: exit {code}")
        return
    output = json.loads((folder / "found.json").read_text("utf-8"))
    yield debug_mode.read(output, tool=tool, seconds=seconds, written=0)


def _logged(module: Any, ids: torch.Tensor) -> list[Any]:
    mode = DebugMode(record_nn_module=True, record_stack_trace=True)
    with mode, DebugMode.log_tensor_hashes(hash_fn=["norm", "hash_tensor"]):
        run(module, ids)
    calls: list[Any] = mode.logs
    return calls


def first(modules: dict[str, Any], ids: torch.Tensor, folder: Path) -> Iterator[Result]:
    """The honest baseline: the first module, in order of execution, with an output in which any value differs."""
    started = time.process_time()
    outputs = [_outputs(modules[side], ids) for side in SIDES]
    name_found = next((name for (name, a), (_, b) in zip(*outputs, strict=False) if not _same(a, b)), None)
    yield Result(
        tool="first nonzero difference",
        verdict="equal" if name_found is None else "differs",
        location=name_found or "-",
        places=() if name_found is None else (name_found,),
        first=name_found or "-",
        first_places=() if name_found is None else (name_found,),
        seconds=time.process_time() - started,
    )


def _outputs(module: Any, ids: torch.Tensor) -> list[tuple[str, list[torch.Tensor]]]:
    outputs: list[tuple[str, list[torch.Tensor]]] = []

    def hook(name: str) -> Callable[..., None]:
        def see(_: Any, __: Any, out: Any) -> None:
            tensors = [value.clone() for value in (out if isinstance(out, tuple) else (out,)) if torch.is_tensor(value)]
            outputs.append((name, tensors))

        return see

    handles = [part.register_forward_hook(hook(name)) for name, part in module.named_modules() if name]
    run(module, ids)
    for handle in handles:
        handle.remove()
    return outputs


def _same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(x.shape == y.shape and torch.equal(x.double(), y.double()) for x, y in zip(a, b, strict=True))


TOOLS: dict[str, Callable[[dict[str, Any], torch.Tensor, Path], Iterator[Result]]] = {
    "sglang": sglang,
    "msprobe": msprobe,
    "debug": debug,
    "first": first,
}

if __name__ == "__main__":
    main()
