"""`moeparity kernel probe` and `moeparity kernel certify` as a user runs them; in a process of its own once each."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from moeparity.cli.commands import main
from moeparity.numerics.orders import parse

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
CHECKPOINT = ROOT / "checkpoints" / "quickstart"
Inside = Callable[..., tuple[int, str, str]]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def run(*arguments: str | Path, ranks: int = 0) -> subprocess.CompletedProcess[str]:
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks else []
    command = [sys.executable, *torchrun, "-m", "moeparity.cli", *map(str, arguments)]
    return subprocess.run(
        command, cwd=FOLDER, capture_output=True, text=True, check=False, env=ENVIRONMENT, timeout=240
    )


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Inside:
    """Run a command in this process, which has torch already: exit code, output, errors."""

    def command(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.chdir(FOLDER)
        monkeypatch.setattr(sys, "argv", ["moeparity", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command


def test_a_probe_prints_the_order_and_writes_a_fragment(inside: Inside, tmp_path: Path) -> None:
    out = tmp_path / "found.yaml"
    sizes = ("--n", "96", "--m", "1,8", "--positions", "32")
    code, output, errors = inside(
        "kernel", "probe", "kernels:linear_in_lanes", "--kind", "linear", *sizes, "--out", out
    )
    assert code == 0, errors
    assert "kernels:linear_in_lanes as linear" in output
    assert "replayed bit for bit: 512 of 512 zero-sum sums" in output
    assert "products are rounded before they are added (no fma)" in output
    assert "M = 1, 8, N = 32: all: A" in output
    (rule,) = yaml.safe_load(out.read_text())["rules"]
    assert rule["op"] == "linear"
    assert rule["evidence"]["level"] == "verified"
    order = rule["set"]["order"]
    assert str(parse(order)) == order == "lanes(8, zero) | fold_hi"
    assert order in output


def test_what_is_known_of_the_machines_own_linear_is_all_that_is_written(inside: Inside, tmp_path: Path) -> None:
    """Which arithmetic torch's GEMM has here is the processor's business; a fragment is of what replays in full."""
    out = tmp_path / "found.yaml"
    sizes = ("--n", "96", "--m", "1,8", "--positions", "32")
    code, output, errors = inside("kernel", "probe", "kernels:linear", *sizes, "--out", out)
    replayed = [line.strip() for line in output.splitlines() if "zero-sum sums" in line]
    assert len(replayed) >= 1
    is_known = all(line == "replayed bit for bit: 512 of 512 zero-sum sums" for line in replayed)
    assert (code, out.exists()) == ((0, True) if is_known else (3, False)), errors


def test_the_fragment_of_a_norm_binds_to_a_checkpoint(inside: Inside, tmp_path: Path) -> None:
    out, profile = tmp_path / "found.yaml", tmp_path / "probed.yaml"
    assert inside("kernel", "probe", "kernels:hf_rms_norm", "--n", "96", "--dtype", "bf16", "--out", out)[0] == 0
    profile.write_text(f"kind: profile\nname: probed\nextends: hf-eager\n{out.read_text()}")
    code, text_, errors = inside("show", "plan", CHECKPOINT, "--profile", profile)
    assert code == 0, errors
    assert "cascade" in text_
    assert "probed.yaml" in text_


@pytest.mark.parametrize(
    ("order", "code"), [("cascade", 0), ("sequential", 1), ("lanes(8) | fold_hi", 1), ("cascade(halves)", 1)]
)
def test_certify_says_so_by_its_exit_code(order: str, code: int, inside: Inside) -> None:
    exited, out, _ = inside("kernel", "certify", "kernels:row_sum", "--kind", "sum", "--n", "300", "--against", order)
    assert exited == code
    assert out.startswith("PASS    certified: " if code == 0 else "FAIL    not certified: ")
    assert ("the tree is this one" if code == 0 else "the tree is another: cascade") in out
    assert "covers sum over 300 values of fp32; 1000 outputs" in out


def test_the_exit_code_of_a_mistake_is_that_of_the_process() -> None:
    process = run("kernel", "certify", "kernels:raises", "--kind", "sum", "--n", "8", "--against", "cascade")
    assert process.returncode == 2
    assert "Traceback" not in process.stderr
    assert process.stdout == ""


def test_the_lines_say_where_the_tree_changes_with_alignment(inside: Inside) -> None:
    options = ("--kind", "sum", "--n", "24", "--m", "4", "--alignment", "0:3,16")
    code, out, errors = inside("kernel", "probe", "kernels:by_address", *options)
    assert code == 0, errors
    assert "M = 4, arguments 0, 16 elements past multiples of 64 bytes: all: A" in out
    assert "M = 4, arguments 1 to 3 elements past multiples of 64 bytes: all: B" in out


def test_certify_holds_a_function_to_a_node_of_a_plan(inside: Inside) -> None:
    node = ("--plan", str(CHECKPOINT), "--against", "layers[0].moe.combine")
    options = (*node, "--kind", "sum", "--n", "6", "--dtype", "bf16")
    assert inside("kernel", "certify", "kernels:accumulated", *options)[0] == 0
    code, out, _ = inside("kernel", "certify", "kernels:row_sum", *options)
    assert code == 1
    assert "additions rounded to bf16" in out


def test_certify_a_norm_and_a_softmax(inside: Inside) -> None:
    for kernel, order, code in (
        ("rms_norm", "cascade", 0),
        ("rms_norm", "sequential", 1),
        ("softmax", "reverse", 1),
    ):
        assert inside("kernel", "certify", f"kernels:{kernel}", "--n", "200", "--against", order)[0] == code, kernel


def test_under_torchrun_rank_0_prints() -> None:
    options = ("--kind", "all_reduce", "--positions", "10")
    process = run("kernel", "probe", "kernels:all_reduce_and_tell", *options, ranks=2)
    assert process.returncode == 0, process.stderr
    assert process.stdout.count("kernels:all_reduce_and_tell as all_reduce") == 1
    # A group that outlives the probe lets a gloo thread abort one process in ten as it shuts down.
    assert process.stderr.count("group left: False") == 2
    assert "gloo.all_reduce" in process.stdout.partition("shipped order maps that are this one: ")[2]


NORM_OF_MEGATRON = ("--plan", "CHECKPOINT", "--profile", "megatron", "--against", "layers[0].moe.norm")
BAD = {
    "no-function": (["kernel", "probe", "kernels"], "expected MODULE:FUNCTION"),
    "no-module": (["kernel", "probe", "nowhere:f", "--n", "8"], "importing nowhere failed: ModuleNotFoundError"),
    "no-such-function": (["kernel", "probe", "kernels:nothing", "--n", "8"], "does not exist in module kernels"),
    "not-callable": (["kernel", "probe", "kernels:number", "--n", "8"], "is not callable"),
    "kind-unknown": (["kernel", "probe", "kernels:row_sum", "--n", "8", "--kind", "sums"], "Did you mean 'sum'?"),
    "kind-not-told": (["kernel", "probe", "kernels:many", "--n", "8"], "Give --kind: one of sum, dot"),
    "no-n": (["kernel", "probe", "kernels:row_sum"], "how many values does it add up? Give --n."),
    "n-of-one": (["kernel", "probe", "kernels:row_sum", "--n", "1"], "expected 2 to 65536 values in a sum"),
    "dtype-unknown": (
        ["kernel", "probe", "kernels:row_sum", "--n", "8", "--dtype", "fp8"],
        "expected one of bf16, fp16, fp32",
    ),
    "m-not-a-number": (
        ["kernel", "probe", "kernels:row_sum", "--n", "8", "--m", "1,x"],
        "--m 1,x: 'x'; expected whole numbers",
    ),
    "m-backwards": (
        ["kernel", "probe", "kernels:row_sum", "--n", "8", "--m", "8:1"],
        "'8:1'; expected whole numbers from 1",
    ),
    "m-of-a-dot": (["kernel", "probe", "kernels:dot", "--n", "8", "--m", "2"], "dot has one result"),
    "raises": (["kernel", "probe", "kernels:raises", "--n", "8"], "raised RuntimeError: no such luck (kernels.py:"),
    "leaves": (["kernel", "probe", "kernels:leaves", "--n", "8"], "raised SystemExit: 0 (kernels.py:"),
    "wrong-shape": (
        ["kernel", "probe", "kernels:wrong_shape", "--kind", "sum", "--n", "8"],
        "Is it of another kind? Give --kind.",
    ),
    "no-tensor": (
        ["kernel", "probe", "kernels:no_tensor", "--kind", "sum", "--n", "8"],
        "returned str; expected a tensor",
    ),
    "no-processes": (["kernel", "probe", "kernels:all_reduce", "--kind", "all_reduce"], "start them with `torchrun"),
    "out-nowhere": (
        ["kernel", "probe", "kernels:row_sum", "--n", "8", "--out", "nowhere/x.yaml"],
        "there is no folder nowhere",
    ),
    "no-order": (
        ["kernel", "certify", "kernels:row_sum", "--n", "8", "--against", "cascad"],
        "Did you mean 'cascade'?",
    ),
    "order-of-others": (
        ["kernel", "certify", "kernels:row_sum", "--n", "8", "--against", "tree(0+1)"],
        "adds up 2 values",
    ),
    "fma-of-a-sum": (
        ["kernel", "certify", "kernels:row_sum", "--n", "8", "--against", "sequential(fma)"],
        "contracts products",
    ),
    "collective-of-a-sum": (
        ["kernel", "certify", "kernels:row_sum", "--n", "8", "--against", "nccl.ring"],
        "a collective, and",
    ),
    "a-reduce-scatter": (
        ["kernel", "certify", "kernels:all_reduce", "--against", "gloo.reduce_scatter_list"],
        "is no all-reduce of one algorithm",
    ),
    "accumulate-unknown": (
        ["kernel", "certify", "kernels:row_sum", "--n", "8", "--against", "cascade", "--accumulate", "fp8"],
        "--accumulate fp8: expected one of",
    ),
    "node-unknown": (
        ["kernel", "certify", "kernels:row_sum", "--n", "8", "--against", "layers[0].moe.gat", "--plan", "CHECKPOINT"],
        "Did you mean 'layers[0].moe.gate'?",
    ),
    "node-native": (
        ["kernel", "certify", "kernels:row_sum", "--n", "8", "--against", "layers[0].moe.norm", "--plan", "CHECKPOINT"],
        "of which nothing is claimed",
    ),
    "node-of-moments": (
        ["kernel", "certify", "kernels:rms_norm", "--n", "96", *NORM_OF_MEGATRON],
        "its statistic is transformer_engine, which is more than one sum of squares",
    ),
    "launch-refused": (
        ["kernel", "certify", "kernels:rms_norm", "--n", "100", "--against", "sglang.rms_norm"],
        "a multiple of 256 to 8192 16-bit elements, not 100 elements in fp32",
    ),
    "rule-unknown": (
        ["kernel", "certify", "kernels:rms_norm", "--n", "100", "--against", "sglang.rms_nrm"],
        "Did you mean 'sglang.rms_norm'?",
    ),
    "node-without-order": (
        [
            "kernel",
            "certify",
            "kernels:row_sum",
            "--n",
            "8",
            "--against",
            "layers[0].moe.router",
            "--plan",
            "CHECKPOINT",
        ],
        "adds nothing up in an order that can be set",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_mistake_is_one_message_and_exit_code_2(name: str, inside: Inside) -> None:
    arguments, message = BAD[name]
    code, _, errors = inside(*(CHECKPOINT if argument == "CHECKPOINT" else argument for argument in arguments))
    assert code == 2
    assert message in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("kernel", "kind", "words"),
    [
        ("no_sum", "sum", "0 orders found, no sums checked; exit 3: no order can be set, since A has no fixed tree"),
        ("no_sum", "sum", "A no fixed tree: "),
        ("combine_in_12_bits", "combine", "exit 3: no order can be set, since A replays "),
    ],
)
def test_what_does_not_replay_is_told_and_not_written(
    kernel: str, kind: str, words: str, inside: Inside, tmp_path: Path
) -> None:
    """Exit code 3, and a file of an earlier probe stays what it is."""
    new, old = tmp_path / "new.yaml", tmp_path / "old.yaml"
    old.write_text("of yesterday")
    for out in (new, old):
        options = ("--kind", kind, "--n", "8", "--dtype", "bf16", "--out", out)
        code, text, errors = inside("kernel", "probe", f"kernels:{kernel}", *options)
        assert code == 3
        assert words in " ".join(text.split())
        assert "fma" not in text
        assert errors.startswith(f"{out} is not written: ")
    assert not new.exists()
    assert old.read_text() == "of yesterday"


def test_certify_takes_the_launch_rule_of_a_node(inside: Inside) -> None:
    """Every engine's norm: the rule's order at this launch is printed, and held to."""
    node = ("--plan", str(CHECKPOINT), "--profile", "flashinfer-fused", "--against", "layers[0].moe.norm")
    code, out, errors = inside("kernel", "certify", "kernels:rms_norm", "--n", "64", "--dtype", "bf16", *node)
    assert (code, errors) == (1, "")
    assert "flashinfer.rms_norm, M = 64: threads(32, vector=8, fma) | fold_hi(32) | fold_hi" in out
    rows = ("--n", "2048", "--m", "4,300", "--dtype", "bf16", "--against", "vllm.rms_norm")
    code, out, errors = inside("kernel", "certify", "kernels:rms_norm", *rows)
    assert (code, errors) == (1, "")
    assert "vllm.rms_norm, M = 4, 300: threads(256, vector=8, fma) | fold_lo(32) | sequential" in out


def test_help_does_not_load_torch() -> None:
    code = (
        "import sys\nfrom moeparity.cli import main\nsys.argv = ['moeparity', 'kernel', 'probe', '--help']\n"
        "try:\n    main()\nexcept SystemExit as e:\n    assert not e.code\nsys.exit(3 if 'torch' in sys.modules else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
