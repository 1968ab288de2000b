"""The readers of vLLM's and SGLang's options beside the parsers of vLLM 0.33.0 and SGLang 0.5.23 themselves.

Compared is every option of which the reader says anything, its lists, and how a line is taken apart: abbreviations,
aliases, `--name=value`, `--no-name`, repeated options, dotted keys of mappings, several words, the model's place.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from moeparity.profiles.launch import read
from moeparity.profiles.launch.knowledge import listed
from moeparity.profiles.launch.reading import arguments, sources
from moeparity.profiles.launch.reading.grammar import Grammar
from moeparity.profiles.launch.reading.shell_words import Word
from tests.profiles.launch.expected import EXPECTED
from tests.profiles.launch.own_parser import OwnParser, compared_lines, differences, plain, read_otherwise

pytestmark = pytest.mark.live
FILES = Path(__file__).parent / "files"
TOGGLED = ("EnableDisableAction", "BooleanOptionalAction")
LISTS = {
    "vllm": tuple(listed("vllm", words) for words in ("switches", "toggles", "several")),
    "sglang": tuple(listed("sglang", words) for words in ("switches", "toggles", "several")),
}
HELP = {"h", "help"}


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def parser(request: pytest.FixtureRequest) -> Iterator[OwnParser]:
    own_parser = OwnParser(request.param)
    yield own_parser
    own_parser.close()


def test_every_option_is_known_and_none_is_made_up(parser: OwnParser) -> None:
    """Nothing in theirs is unknown to the reader, and the reader knows nothing that they do not have."""
    theirs = {plain(name) for action in parser.actions for name in action["names"]} - HELP
    grammar = parser.program.grammar
    assert grammar is not None
    ours = {plain(spelling): on for spelling, (_, on) in grammar.spellings.items()}
    assert theirs - set(ours) == set()
    shortened = {"vllm": {"O"}, "sglang": {"tp", "dp"}}[parser.engine]
    assert {name for name, on in ours.items() if on} - theirs == shortened


def test_switches_and_lists_are_those_of_the_actions(parser: OwnParser) -> None:
    switches, toggles, several = LISTS[parser.engine]
    actions = {plain(action["names"][0]): action for action in parser.actions if action["dest"] != "help"}
    without_value = {name for name, action in actions.items() if action["words"] == 0}
    assert without_value == switches | toggles
    assert {name for name in without_value if actions[name]["class"] in TOGGLED} == toggles
    assert {name for name, action in actions.items() if action["words"] in ("+", "*")} == several


def test_choices_are_those_of_the_actions(parser: OwnParser) -> None:
    """The reader refuses no word that the parser takes."""
    actions = {plain(name): action for action in parser.actions for name in action["names"]}
    for option in parser.program.options:
        choices = next((actions[name]["choices"] for name in option.names if name in actions), None)
        if option.choices and choices:
            assert set(choices) <= set(option.choices), option.name


def recorded(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Sequence[Word], Grammar]]:
    """The words of every program that a file starts, as the reader hands them on."""
    lines_of_file: list[tuple[Sequence[Word], Grammar]] = []
    options = arguments.options

    def recording(words: Sequence[Word], grammar: Grammar) -> Any:
        lines_of_file.append((words, grammar))
        return options(words, grammar)

    with monkeypatch.context() as patch:
        patch.setattr(sources, "options", recording)
        read(path)
    return lines_of_file


def test_the_lines_of_launch_files(parser: OwnParser, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command of this server in the files of `files/` that is resolved."""
    compared = 0
    for name, expected in EXPECTED.items():
        if expected.refused or expected.engine.lower() != parser.engine:
            continue
        for words, grammar in recorded(FILES / name, monkeypatch):
            if grammar is not parser.program.grammar or not all(word.is_known and not word.condition for word in words):
                continue
            beside = {word.text: str((FILES / name).parent / word.text) for word in words if ".yaml" in word.text}
            answer = parser.ask([beside.get(word.text, word.text) for word in words])
            if any(
                word.text.startswith(f"--{gone.replace('_', '-')}") for word in words for gone in parser.program.gone
            ):
                assert "refused" in answer, (name, answer)
                assert any("refuses it" in key.hint for key in read(FILES / name).ignored), name
                continue
            assert "values" in answer, (name, answer)
            assert differences(parser, read(FILES / name), answer["values"]) == [], name
            compared += 1
    assert compared == {"vllm": 14, "sglang": 6}[parser.engine]


@pytest.mark.parametrize("seed", range(3))
def test_lines_of_random_options(parser: OwnParser, seed: int, tmp_path: Path) -> None:
    assert compared_lines(parser, 100, seed, tmp_path) > 80


VLLM_LINES = (
    "-tp 2 --tensor-parallel-size 4 -tp 8",
    "--tensor-par 4 --no-enforce-eager --enforce-eager",
    "--disable-expert-parallel -ep",
    "--enable-custom-all-reduce",
    "--disable-custom-all-reduce --no-disable-custom-all-reduce",
    "--hf-overrides.head_dtype float32",
    "--hf_overrides.a.b 1 --hf-overrides.a.c=[2]",
    """--hf-overrides '{"a": 1}' --hf-overrides.head_dtype float32""",
    "-cc.mode 0 -cc.pass_config.fuse_allreduce_rms=false",
    "-O3 -O 1",
    "-O=0",
    "--cudagraph-capture-sizes 1 2 4 --kv-cache-dtype fp8",
    "--disable-prefix-caching --disable-chunked-prefill",
    "--moe-backend=b12x --all2all-backend deepep_v2",
    "--compilation_config.cudagraph_capture_sizes+ 1,2",
)
SGLANG_LINES = (
    "--tp 2 --tensor-parallel-size 4 --tp-size 8",
    "--ep 8 --tp 8",
    "--tp 2 --dp 2 --enable-dp-attention",
    "--tp 2 --attn-dp 2",
    "--monokernel-backend amd",
    "--enable-flashinfer-allreduce-fusion",
    "--flashinfer-allreduce-fusion mnnvl",
    "--kv-cache fp8_e4m3 --no-enable-tf32-matmul",
    "--disable-cuda-graph --disable-rad",
    """--lora-paths a=b c=d --json-model-override-args '{"a": 1}'""",
)


def test_lines_where_spellings_meet(parser: OwnParser, tmp_path: Path) -> None:
    for line in {"vllm": VLLM_LINES, "sglang": SGLANG_LINES}[parser.engine]:
        assert read_otherwise(parser, ["serve", "m", *shlex.split(line)], tmp_path) == [], line


REFUSED = {
    "vllm": ("--tp 4", "--enforce-eager false", "other", "--mode x", "--tensor-parallel 4 --no-tensor-parallel-size"),
    "sglang": ("--tp_size 4", "-tp 4", "--no-enable-lora", "--max-model-len 10", "--enable-e", "--enable-lora true"),
}


def test_a_line_that_the_parser_refuses_is_told(parser: OwnParser, tmp_path: Path) -> None:
    """The reader takes nothing over from the word that is refused, and says so."""
    for line in REFUSED[parser.engine]:
        assert "refused" in parser.ask(["serve", "m", *line.split()]), line
        (tmp_path / "launch.sh").write_text(f"{parser.engine} serve m {line}\n", "utf-8")
        launch = read(tmp_path / "launch.sh")
        assert launch.ignored or any("its parser refuses it" in note.says for note in launch.notes), line


@pytest.mark.parametrize(
    ("line", "model"),
    [
        ("serve --trust-remote-code a", "a"),
        ("serve a --trust-remote-code", "a"),
        ("serve -tp 2 a", "a"),
        ("serve --model b", "b"),
        ("serve a --config server.yaml", "a"),
        ("serve --config server.yaml", "c"),
    ],
)
def test_the_model_is_the_word_that_vllm_takes(line: str, model: str, tmp_path: Path) -> None:
    (tmp_path / "server.yaml").write_text("model: c\n", "utf-8")
    (tmp_path / "launch.sh").write_text(f"vllm {line}\n", "utf-8")
    assert read(tmp_path / "launch.sh").model.name == model
