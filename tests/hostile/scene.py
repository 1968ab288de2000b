"""A folder in which every command that writes a file can run, and what of it has to hold when one has run."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

import torch
import yaml
from safetensors.torch import load, save_file

from tests.errors.base import TOKENS, WEIGHTS
from tests.hostile.subjects import FIXTURES, LAUNCHES, RECIPE, SUBJECTS

MODULE = "adding.py"
INPUTS = ("recipe.yaml", "profile.yaml", TOKENS, "config.json", WEIGHTS)
_CPU = ("--device", "cpu")


LONG = "floor: true\noracle: true\nreplay: true\nattribute: true\nenvelope: 4\nby: node\n"
"""What makes a recipe a long run: a first pass with everything in it, further ones, and searches among mixtures."""


@dataclass(frozen=True, slots=True)
class Writer:
    """A command that writes a file: the words before the file's name, how the name ends, and what the command reads."""

    words: tuple[str, ...]
    ending: str
    inputs: tuple[str, ...] = INPUTS
    printable: bool = True
    """Whether `-` stands for standard output."""
    beside: tuple[str, ...] = ()
    """How the names of files end that it writes beside, in place of `ending`."""

    def outputs(self, stem: str) -> tuple[str, ...]:
        """The files that it writes to a name of that stem."""
        return (f"{stem}{self.ending}", *(f"{stem}{ending}" for ending in self.beside))

    def to(self, name: str) -> tuple[str, ...]:
        """The command line that writes to that name."""
        return (*self.words[:-1], f"{self.words[-1]}={name}")


WRITERS: dict[str, Writer] = {
    "bisect": Writer(("bisect", "recipe.yaml", *_CPU, "--json"), ".json"),
    "check": Writer(("check", "recipe.yaml", *_CPU, "--junit"), ".xml"),
    "sweep": Writer(("sweep", "recipe.yaml", "--over", "micro_batch=1,2", *_CPU, "--json"), ".json"),
    "variance": Writer(("variance", "recipe.yaml", "--batches", "1,2", *_CPU, "--json"), ".json"),
    "flips": Writer(("flips", "recipe.yaml", *_CPU, "--json"), ".json"),
    "flips map": Writer(("flips", "recipe.yaml", *_CPU, "--map"), ".safetensors", printable=False),
    "flips log": Writer(("diff", "a.jsonl", "b.jsonl", "--json"), ".json", ("a.jsonl", "b.jsonl")),
    "mine": Writer(("flips", "recipe.yaml", "--mine", TOKENS, *_CPU, "--json"), ".json"),
    "mine out": Writer(("flips", "recipe.yaml", "--mine", TOKENS, *_CPU, "--out"), ".jsonl"),
    "metrics": Writer(("metrics", "log.jsonl", "--json"), ".json", ("log.jsonl",)),
    "metrics plot": Writer(("metrics", "steps.jsonl", "--plot"), ".svg", ("steps.jsonl",), printable=False),
    "repeats plot": Writer(
        ("metrics", "log.jsonl", "steps.jsonl", "--repeats", "--plot"),
        ".png",
        ("log.jsonl", "steps.jsonl"),
        printable=False,
    ),
    "engines": Writer(("show", "launch", "vllm.sh", "--json"), ".json", ("vllm.sh",)),
    "engines of two": Writer(("show", "engines", "hf-eager", "./profile.yaml", "--json"), ".json", ("profile.yaml",)),
    "ops": Writer(("show", "ops", "--fidelity", "--json"), ".json", ()),
    "probe": Writer(("kernel", "probe", "adding:total", "--n", "4", "--kind", "sum", "--out"), ".yaml", (MODULE,)),
    "forward": Writer(
        ("forward", ".", "--tokens", TOKENS, *_CPU, "--out"), ".safetensors", (TOKENS, "config.json", WEIGHTS), False
    ),
    "sample": Writer(
        ("sample", "sampled.yaml", *_CPU, "--out"), ".safetensors", ("sampled.yaml", TOKENS, WEIGHTS), False
    ),
    "init": Writer(
        ("init", ".", "--force", "--out"), ".yaml", ("config.json", WEIGHTS), False, beside=(".tokens.jsonl",)
    ),
    "bisect html": Writer(("bisect", "recipe.yaml", *_CPU, "--html"), ".html"),
    "check html": Writer(("check", "recipe.yaml", *_CPU, "--html"), ".html"),
    "flips html": Writer(("flips", "recipe.yaml", *_CPU, "--html"), ".html"),
    "sweep html": Writer(("sweep", "recipe.yaml", "--over", "micro_batch=1,2", *_CPU, "--html"), ".html"),
    "variance html": Writer(("variance", "recipe.yaml", "--batches", "1,2", *_CPU, "--html"), ".html"),
    "mine html": Writer(("flips", "recipe.yaml", "--mine", TOKENS, *_CPU, "--html"), ".html"),
    "metrics html": Writer(("metrics", "steps.jsonl", "--html"), ".html", ("steps.jsonl",)),
    "bisect markdown": Writer(("bisect", "recipe.yaml", *_CPU, "--markdown"), ".md", beside=(".svg",)),
    "check markdown": Writer(("check", "recipe.yaml", *_CPU, "--markdown"), ".md", beside=(".svg",)),
    "check baseline": Writer(("check", "recipe.yaml", *_CPU, "--update", "--baseline"), ".json", printable=False),
}
"""Every command with an output, once for each."""


def make(folder: Path) -> None:
    """The files that the commands of `WRITERS` read."""
    folder.mkdir(exist_ok=True)
    SUBJECTS["profile"].make(folder)
    SUBJECTS["routes"].make(folder)
    (folder / "broken.yaml").write_text(RECIPE % ("nowhere.safetensors", "hf-eager", "hf-eager"), "utf-8")
    sampled = (RECIPE % (TOKENS, "hf-eager", "hf-eager")).replace(
        "sampled_from: candidate", "sample: {from: candidate, new_tokens: 2, temperature: 1.0, seed: 0}"
    )
    (folder / "sampled.yaml").write_text(sampled, "utf-8")
    split = (RECIPE % (TOKENS, "hf-eager", "./profile.yaml")) + "split: 2\n"
    (folder / "split.yaml").write_text(split.replace("below: 1.0e-4", "below: 1.0e-9"), "utf-8")
    (folder / "long.yaml").write_text(split.replace(TOKENS, "long.safetensors") + LONG, "utf-8")
    ids = torch.randint(0, 32, (16, 8), generator=torch.Generator().manual_seed(7))
    save_file({"input_ids": ids}, folder / "long.safetensors")
    shutil.copy(FIXTURES / "moeparity" / "log.jsonl", folder)
    lines = (folder / "log.jsonl").read_text("utf-8").splitlines()
    stepped = [json.dumps({**json.loads(line), "step": number // 2}) for number, line in enumerate(lines)]
    (folder / "steps.jsonl").write_text("\n".join(stepped) + "\n", "utf-8")
    shutil.copy(LAUNCHES / "vllm.sh", folder)
    (folder / MODULE).write_text("def total(x):\n    return x.sum(-1)\n", "utf-8")


State = dict[str, bytes | str]
"""What lies under a folder: the bytes of files, and of anything else what it is."""


def state(*folders: Path) -> State:
    """What lies under folders but what Python makes of modules; links are not followed."""
    return {str(path): _contents(path) for folder in folders for path in _below(folder)}


def _below(folder: Path) -> Iterable[Path]:
    for path in sorted(folder.iterdir()):
        if path.name == "__pycache__":
            continue
        yield path
        if path.is_dir() and not path.is_symlink() and os.access(path, os.R_OK | os.X_OK):
            yield from _below(path)


def _contents(path: Path) -> bytes | str:
    if path.is_symlink():
        return f"a link to {path.readlink()}"
    if path.is_file() and os.access(path, os.R_OK):
        return path.read_bytes()
    return f"no file: {path.lstat().st_mode:o}"


def difference(before: State, after: State, outputs: Iterable[Path]) -> str | None:
    """What a command has changed that it may not; None where only `outputs` are new or other, and those are whole."""
    allowed = {str(path) for path in outputs}
    for name in before.keys() - after.keys():
        return f"{name} is gone"
    for name, contents in after.items():
        if name not in allowed and before.get(name) != contents:
            return f"{name} is {'changed' if name in before else 'left'}"
        if name in allowed and before.get(name) != contents:
            reason = _not_whole(Path(name), contents)
            if reason is not None:
                return f"{name} is not whole: {reason}"
    return None


def leavings(folder: Path) -> str | None:
    """What a run that was not killed has left in a home: anything but the key that signs kept passes, and caches of
    other libraries.
    """
    ours = (Path(name) for name in state(folder) if "moeparity" in name.removeprefix(str(folder)))
    leftovers = [path for path in ours if path.is_file() and path.name != "key"]
    return f"{leftovers[0]} is left" if leftovers else None


def _not_whole(path: Path, contents: bytes | str) -> str | None:
    """Why an output is not what its name says; None where it is."""
    if isinstance(contents, str):
        return contents
    readers: dict[str, Callable[[bytes], object]] = {
        ".json": json.loads,
        ".jsonl": lambda raw: [json.loads(line) for line in raw.splitlines()],
        ".xml": ET.fromstring,
        ".svg": ET.fromstring,
        ".yaml": yaml.safe_load,
        ".safetensors": load,
        ".png": lambda raw: raw.index(b"IEND"),
        ".html": _page_data,
        ".md": lambda raw: raw.decode("utf-8").rstrip()[-1],
    }
    try:
        return None if readers[path.suffix](contents) else "it holds nothing"
    except Exception as error:  # noqa: BLE001  whatever a reader says of half a file
        return f"{type(error).__name__}: {error}"


def _page_data(raw: bytes) -> object:
    """What a page's scripts draw; raises ValueError for a page that breaks off."""
    page = raw.decode("utf-8")
    if not page.rstrip().endswith("</html>"):
        raise ValueError("no end of the page")
    return json.loads(page.split('id="data">')[1].split("</script>")[0]) or page
