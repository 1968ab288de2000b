"""Compiled kernels as a user certifies and probes them, right ones and ones with planted faults; no GPU, no nvcc."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
import yaml

from moeparity.errors import MoeparityError, Where
from moeparity.ops.attribute import Value
from moeparity.plan.bind import bind
from moeparity.plan.bound import Plan
from moeparity.plan.config import Config
from moeparity.plan.engine_profile import load_profile, overrides
from moeparity.plan.expand import expand
from moeparity.plan.graph import Graph, Node
from moeparity.probe.kernels.certify import NodeVerdict, certify_node
from moeparity.probe.kernels.expressions import whole
from moeparity.probe.kernels.launch import Kernel, open_kernel
from moeparity.probe.kernels.node import compared
from moeparity.profiles.compare import architectures
from tests.command import ROOT, Done, inside
from tests.engines.cuda import toolchain

FOLDER = ROOT / "tests" / "probe" / "kernel_files"
CHECKPOINT = ROOT / "checkpoints" / "quickstart"
HERE = Where(Path("recipe.yaml"))
TREE = "fold_hi(32) | fold_hi"
NORM = {"rsqrt": "ieee", "order": f"threads(32) | {TREE}"}


@cache
def graph(name: str) -> Graph:
    return expand(Config(CHECKPOINT / "config.json" if name == "quickstart" else architectures()[name]))


def bound(node: str, settings: dict[str, Value], model: str = "quickstart") -> tuple[Plan, Node]:
    rules = overrides({name if ":" in name else f"{node}:{name}": value for name, value in settings.items()}, HERE)
    plan = bind(graph(model), load_profile("vllm-eager", HERE), "bf16", rules)
    return plan, next(item for item in plan.graph.nodes if item.name == node)


@cache
def kernel(name: str) -> Kernel:
    return open_kernel(FOLDER / f"{name}.yaml")


def verdict_on(name: str, node: str, model: str = "quickstart", /, **settings: Value) -> NodeVerdict:
    return certify_node(kernel(name), *bound(node, settings, model), (1, 24), 64)


def change(verdict: NodeVerdict) -> dict[str, dict[str, Value]]:
    return {name: dict(fit.change) for name, fit in verdict.gives.items()}


COMBINE, ROUTER = "layers[0].moe.combine", "layers[0].moe.router"
SHARED = "layers[0].moe.shared.act"


@pytest.mark.parametrize(
    ("name", "node", "settings"),
    [
        ("norm_strided", "norm", NORM),
        ("norm_vectors", "norm", NORM | {"order": f"threads(32, 8) | {TREE}"}),
        ("norm_cast_first", "norm", NORM | {"order": f"threads(32, 8) | {TREE}", "normalized": "model"}),
        ("combine_wide", COMBINE, {}),
        ("combine_narrow", COMBINE, {"accumulate": "bf16"}),
    ],
)
def test_a_kernel_with_all_bits_of_a_node_is_certified(name: str, node: str, settings: dict[str, Value]) -> None:
    verdict = verdict_on(name, node, **settings)
    assert verdict.holds
    assert sum(comparison.numbers for _, comparisons in verdict.cases for comparison in comparisons) > 1000
    orders = [dict(change_tried)["order"] for change_tried in verdict.tried.differing if "order" in change_tried]
    assert {"reverse", "fold_lo"} <= set(orders), "its data tells orders apart"


@pytest.mark.parametrize(
    ("name", "node", "settings", "expected"),
    [
        ("norm_strided", "norm", {"rsqrt": "ieee"}, {"order": f"threads(32) | {TREE}"}),
        ("norm_vectors", "norm", NORM, {"order": f"threads(32, vector=8) | {TREE}"}),
        ("norm_cast_first", "norm", NORM | {"order": f"threads(32, 8) | {TREE}"}, {"normalized": "bf16"}),
        ("norm_narrow_sum", "norm", NORM, {"square": "bf16", "order": f"threads(32, accumulate=bf16) | {TREE}"}),
        ("combine_down", COMBINE, {}, {"order": "reverse"}),
        ("combine_narrow", COMBINE, {}, {"accumulate": "bf16"}),
    ],
)
def test_where_bits_differ_the_choice_that_gives_them_is_named(
    name: str, node: str, settings: dict[str, Value], expected: dict[str, Value]
) -> None:
    verdict = verdict_on(name, node, **settings)
    assert not verdict.holds
    assert change(verdict) == {"out": expected}


WEIGHED: dict[str, Value] = {"layers[0].moe.experts:score_site": "combine", "weighted": "fp32"}


def test_the_contraction_of_weighted_rows_is_a_choice_of_its_order() -> None:
    """nvcc's default makes fma of the row's product and the sum."""
    verdict = verdict_on("combine_weighted", COMBINE, **WEIGHED)
    assert not verdict.holds
    assert change(verdict) == {"out": {"order": "sequential(fma)"}}
    assert verdict_on("combine_weighted", COMBINE, **WEIGHED, order="sequential(fma)").holds


def test_a_fault_that_no_choice_explains_is_not_given_the_name_of_one() -> None:
    """A tail that is one short."""
    verdict = verdict_on("norm_short_tail", "norm", **NORM)
    assert not verdict.holds
    assert verdict.gives == {}
    assert any(comparison.ulp > 1 for _, comparisons in verdict.cases for comparison in comparisons)


def test_a_missing_barrier_is_a_race_and_nothing_else() -> None:
    verdict = verdict_on("norm_missing_barrier", "norm", **NORM)
    assert "depends on which threads go first" in verdict.race
    assert not verdict.holds
    assert verdict.cases == ()


def test_a_tail_that_is_one_too_long_is_an_error_that_says_where() -> None:
    with pytest.raises(MoeparityError, match=r"norm_long_tail, grid 1, block 32: Line \d+, block .*, thread .*address"):
        verdict_on("norm_long_tail", "norm", **NORM)


def test_a_router_that_breaks_ties_otherwise_computes_another_model() -> None:
    """Its weights are of other forms than the node's, and with them of the same bits."""
    right, later = verdict_on("router", ROUTER), verdict_on("router_later", ROUTER)
    for verdict, ids in ((right, 0), (later, 1)):
        assert {comparison.name: bool(comparison.differ) for comparison in verdict.cases[-1][1]} == {
            "ids": bool(ids),
            "weights": True,
        }
        assert all(comparison.ulp <= 8 for comparison in verdict.cases[-1][1])
    forms = {"denominator": "fold_hi", "renormalize": "divide", "softmax": "divide"}
    assert change(later) == {"ids and weights": {**forms, "tie_break": "highest_index"}}


def test_a_router_without_its_nodes_bias_is_not_compared() -> None:
    with pytest.raises(MoeparityError, match=r"layers\[3\].moe.router: has a bias that no argument is, and .* logits"):
        verdict_on("router", "layers[3].moe.router", "deepseek_v3")


def test_swiglu_with_one_rounding_or_two() -> None:
    node = next(node.name for node in graph("qwen2_moe").nodes if node.op.name == "swiglu")
    once = verdict_on("swiglu", node, "qwen2_moe", activation="fp32")
    twice = verdict_on("swiglu_twice", node, "qwen2_moe", activation="fp32")
    assert not twice.holds
    assert change(twice) == {"out": {"activation": "bf16"}}
    assert once.holds
    assert {"activation": "bf16"} in once.tried.differing
    assert verdict_on("swiglu_in_place", node, "qwen2_moe", activation="fp32").holds


def command(*arguments: str | Path) -> Done:
    return inside(*arguments, cwd=FOLDER)


DOTS = ("dots.yaml", "--n", "80", "--m", "2", "--positions", "64")


def test_contraction_is_named_as_fma() -> None:
    """The compiler's default and -fmad=false; with what the verdict rests on."""
    fused = command("kernel", "certify", *DOTS, "--against", f"threads(64) | {TREE}")
    assert fused.returncode == 1
    assert "the tree is this one" in fused.stdout
    assert f"the bits are those of threads(64, fma) | {TREE}" in " ".join(fused.stdout.split())
    assert " ulp; " in fused.stdout
    plain = command("kernel", "certify", "dots_nofma.yaml", *DOTS[1:], "--against", f"threads(64) | {TREE}")
    assert plain.returncode == 0, plain.stderr
    assert "PTX by CUDA 13.5.37 for sm_90 -fmad=false; nothing assumed" in plain.stdout
    assert "grid 2 x 64, block 64" in plain.stdout


def test_a_probe_of_a_kernel_finds_its_order_and_its_fragment_says_ptx(tmp_path: Path) -> None:
    out = tmp_path / "found.yaml"
    done = command("kernel", "probe", "norm_vectors.yaml", "--n", "128", "--m", "16", "--out", out)
    assert done.returncode == 0, done.stderr
    assert "  A  blocks(8) | fold_hi\n" in done.stdout
    (rule,) = yaml.safe_load(out.read_text())["rules"]
    assert rule["evidence"]["level"] == "verified: ptx"
    assert "CUDA 13.5.37 for sm_90; nothing assumed" in rule["evidence"]["source"]
    racing = command("kernel", "probe", "norm_missing_barrier.yaml", "--n", "128")
    assert racing.returncode == 3
    assert "a race, or additions by atomics" in racing.stdout


def test_a_kernel_of_tritons_is_probed() -> None:
    """Its masked lanes are zeros that are added."""
    done = command("kernel", "probe", "triton_row_sum.yaml", "--n", "140", "--m", "32")
    assert done.returncode == 0, done.stderr
    assert "  A  lanes(128, zero) | fold_hi(32) | fold_hi\n" in done.stdout
    assert "PTX by LLVM NVPTX Back-End for sm_90a; nothing assumed" in done.stdout


def test_the_verdict_on_a_node_as_a_command_prints_it() -> None:
    """docs/certify.md shows this one."""
    against = ("--plan", CHECKPOINT, "--profile", "vllm-eager", "--against", COMBINE, "--m", "1,5")
    done = command("kernel", "certify", "combine_wide.yaml", *against)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"PASS    certified: combine_wide.yaml against {COMBINE}; exit 0\n")
    assert "tokens 5, slots 6, hidden 512, scale 1\n  out: all 2,560 equal\n" in done.stdout
    wrong = command("kernel", "certify", "combine_down.yaml", *against)
    assert wrong.returncode == 1
    assert "the kernel's out is that of order reverse, where the node has order sequential" in wrong.stdout
    assert "; the first is out[0, " in wrong.stdout


def changed(tmp_path: Path, name: str, old: str, new: str) -> Path:
    """A kernel file with a mistake."""
    text = (FOLDER / f"{name}.yaml").read_text().replace("../../ptx", str(ROOT / "tests" / "ptx"))
    assert old in text
    (tmp_path / "kernel.yaml").write_text(text.replace(old, new))
    return tmp_path / "kernel.yaml"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("grid: tokens", "grid: token", "kernel.yaml:12: 'token' names token; known here are tokens, hidden, eps"),
        ("block: 32", "block: hidden / 64", "'hidden / 64' is 1.5 here; a whole number from 1 was expected"),
        ("- input: weight", "- input: wieght", "'wieght' is no tensor of rms_norm; expected one of x, weight."),
        ("  - scalar: eps\n", "", "4 arguments; the kernel norm_strided takes 5"),
        ("  - input: weight\n", "  - scalar: 0\n", "rms_norm has weight too; no argument is that tensor."),
        ("kernel: norm_strided", "kernel: norm_", "kernels have 'norm_' in their names"),
        ("kernel: norm_strided", "kernel: nothing", "No kernel has 'nothing' in its name."),
        ("ptx: ", "cuda: ", "is no file"),
        ("ptx: ", "cuda: x.cu\nptx: ", "exactly one of `cuda: FILE.cu`"),
        ("computes: rms_norm", "computes: rms_nrom", "kernel.yaml:4"),
        ("dtype: bf16", "dtype: fp32", "runs in bf16, and"),
        ("- scalar: eps", "- scalar: eps\n    input: x", "an argument is one of"),
        ("grid: tokens", "grid: __import__('os')", "is no expression"),
    ],
)
def test_a_mistake_in_a_kernel_file_says_where_and_what(tmp_path: Path, old: str, new: str, says: str) -> None:
    if new == "cuda: ":
        new = "cuda: absent-"
    path = changed(tmp_path, "norm_strided", old, new)
    done = command(
        "kernel", "certify", path, "--plan", CHECKPOINT, "--profile", "vllm-eager", "--against", "norm", "--m", "1"
    )
    assert done.returncode == 2, done.stdout
    assert says in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("kernel", "probe", "router.yaml", "--n", "8"), "a kernel that computes router is not probed"),
        (("kernel", "probe", "norm_vectors.yaml", "--n", "64", "--dtype", "fp32"), "says what its kernel takes"),
        (("kernel", "certify", "swiglu.yaml", "--plan", CHECKPOINT, "--against", "norm"), "a node of op rms_norm, and"),
        (
            ("kernel", "certify", "combine_weighted.yaml", "--plan", CHECKPOINT, "--profile", "vllm-eager",
             "--against", COMBINE),
            "rows meet their weights in epilogue",
        ),
    ],
)  # fmt: skip
def test_a_users_mistake(arguments: tuple[str | Path, ...], says: str) -> None:
    done = command(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr


def test_an_unknown_instruction_is_named(tmp_path: Path) -> None:
    text = (ROOT / "tests" / "ptx" / "programs" / "layers.ptx").read_text().replace("shfl.sync.bfly", "shfl.sync.odd")
    (tmp_path / "odd.ptx").write_text(text)
    path = changed(tmp_path, "norm_strided", str(ROOT / "tests" / "ptx" / "programs" / "layers.ptx"), "odd.ptx")
    path.write_text(path.read_text().replace(f"{ROOT}/tests/ptx/programs/layers.ptx", "odd.ptx"))
    done = command("kernel", "probe", path, "--n", "64")
    assert done.returncode == 2
    assert "shfl.sync.odd" in done.stderr


def test_without_nvcc_one_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    path = changed(tmp_path, "norm_strided", "layers.ptx", "layers.cu")
    path.write_text(path.read_text().replace("ptx: ", "cuda: "))
    with pytest.raises(
        MoeparityError, match=r"no nvcc was found (?s:.*)`pip install nvidia-cuda-nvcc .*`ptx:` in place"
    ):
        open_kernel(path)


@pytest.mark.live
def test_a_cuda_source_is_compiled_with_its_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_HOME", str(toolchain.compiler().parents[1]))
    path = changed(tmp_path, "dots", "layers.ptx", "layers.cu")
    path.write_text(
        path.read_text().replace("ptx: ", "cuda: ").replace("kernel: dots", "flags: [-fmad=false]\nkernel: dots")
    )
    done = command("kernel", "certify", path, *DOTS[1:], "--against", f"threads(64) | {TREE}")
    assert done.returncode == 0, done.stderr
    assert "-fmad=false" in done.stdout
    (tmp_path / "broken.cu").write_text("this is no CUDA")
    path.write_text(path.read_text().replace(f"{ROOT}/tests/ptx/programs/layers.cu", "broken.cu"))
    refused = command("kernel", "certify", path, *DOTS[1:], "--against", "sequential")
    assert refused.returncode == 2
    assert "does not compile it" in refused.stderr


def test_expressions() -> None:
    names = {"tokens": 300, "hidden": 7168}
    for text, number in (
        ("1024 if tokens < 256 else 256", 256),
        ("ceil_div(tokens * hidden, 256)", 8400),
        ("min(1024, hidden // 8)", 896),
        ("max(tokens, 7) % 7 - -1", 7),
        (12, 12),
    ):
        assert whole(text, names, HERE) == number
    for text in ("tokens // 0", "tokens.real", "f(1, 2)", "min(1)", "1 if", "9 ** 9", "'a'"):
        with pytest.raises(MoeparityError):
            whole(text, names, HERE)


def test_numbers_are_compared_by_their_bits() -> None:
    of_kernel = torch.tensor([0.0, 1.0, float("nan"), 2.0])
    of_node = torch.tensor([-0.0, 1.0 + 2**-23, float("nan"), 2.0])
    comparison = compared("out", of_kernel, of_node)
    assert (comparison.differ, comparison.ulp) == (2, 1)
    assert comparison.first == "the first is out[0]: 0 of the kernel, -0 of the node"
