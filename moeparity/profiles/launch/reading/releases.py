"""Which releases a launch file installs, or starts the image of."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from moeparity import paths
from moeparity.errors import Where
from moeparity.profiles.launch.reading.python_names import Names
from moeparity.profiles.launch.reading.shell_words import Word, is_known, plain
from moeparity.profiles.launch.source import Installed

INSTALLERS = ("pip", "pip3", "uv", "uvx", "pipx", "conda", "mamba", "micromamba")
"""Programs among whose words requirements stand."""
_REQUIREMENT = re.compile(
    r"([A-Za-z][\w.-]*)(?:\[[\w,. -]*\])?\s*((?:===?|>=|<=|~=|!=|<|>|=)[^;@]+|@\s*\S+)?(?:\s*;.*)?"
)
_FILE = re.compile(r".*?(?:^|/)([A-Za-z]\w*?)-(\d[\w.+]*?)(?:-[\w.]+-[\w.]+-[\w.]+\.whl|\.tar\.gz|\.zip)(?:#.*)?")
_REPOSITORY = re.compile(r"git\+.*/([\w.-]+?)(?:\.git)?(?:@([^#]+))?(?:#.*)?")
_PINNED = re.compile(r"v?(\d+(?:\.\d+)+[\w.+]*)")
_ALIASES = {"megatron_core": "megatron", "megatron": "megatron", "prime_rl": "prime-rl", "nemo_rl": "nemo-rl"}
"""By the name of a package, what it is called here where that differs."""
_OF_MODAL = ("pip_install", "uv_pip_install")


def installed(words: Sequence[Word]) -> Iterator[Installed]:
    """The releases that a command installs: `pip install 'vllm>=0.9,<0.10'`, `uv run --with vllm==0.9.2`, `-r FILE`."""
    for place, word in enumerate(words):
        before = words[place - 1].text if place else ""
        if before in ("-r", "--requirement") or word.text.startswith("--requirement="):
            yield from _listed(word.text.removeprefix("--requirement="), word.where)
        else:
            yield from required(word.text, word.where)


def required(text: str, where: Where) -> Iterator[Installed]:
    """The release that one requirement asks for: by versions, by a file, or by a repository."""
    requirement = _REQUIREMENT.fullmatch(text.strip())
    name, bounds = (requirement[1], requirement[2] or "") if requirement else ("", text.strip())
    source = bounds.removeprefix("@").strip()
    file, repository = _FILE.fullmatch(source), _REPOSITORY.fullmatch(source)
    if file:
        name, version = file[1], file[2]
    elif repository:
        # A commit or a branch is no release.
        tag = _PINNED.fullmatch(repository[2] or "")
        name, version = repository[1], tag[1] if tag else repository[2] or "main"
    elif requirement and bounds[:1] in tuple("=<>~!"):
        version = bounds if is_known(bounds) else plain(bounds)
    else:
        return
    package = name.lower().replace("-", "_")
    says = plain(text.strip())
    yield Installed(says=says, where=where, package=_ALIASES.get(package, package), version=version)


def _listed(name: str, where: Where) -> Iterator[Installed]:
    """What a file of requirements that is beside asks for."""
    file = where.path.parent / plain(name)
    if not is_known(name) or not paths.is_file(file):
        return
    try:
        text = paths.contents(file, "launch configuration").decode("utf-8", "replace")
    except OSError:
        return
    for number, line in enumerate(text.splitlines(), 1):
        yield from required(line.partition(" #")[0], Where(file, number))


def of_image(image: str, where: Where) -> Iterator[Installed]:
    """The release of an image's tag: `vllm/vllm-openai:v0.9.2`, `docker://...`, `nvcr.io#nvidia/vllm:25.09`."""
    text = plain(image).removeprefix("docker://").replace("#", "/").partition("@")[0]
    name, colon, tag = text.rpartition(":")
    version = re.match(r"v?(\d+\.\d+(?:\.\d+)*)", tag) if colon and "/" not in tag else None
    if version:
        package = name.rpartition("/")[2].removesuffix("-rocm").removesuffix("-openai")
        yield Installed(says=f"image {text}", where=where, package=package, version=version[1])


def of_launcher(words: Sequence[Word]) -> Iterator[Installed]:
    """The images that a launcher on a cluster starts: of apptainer, and of srun's `--container-image`."""
    for place, word in enumerate(words):
        before = words[place - 1].text if place else ""
        name, _, value = word.text.partition("=")
        if word.text.startswith("docker://"):
            yield from of_image(word.text, word.where)
        elif name in ("--container-image", "--image") and value:
            yield from of_image(value, word.where)
        elif before in ("--container-image", "--image"):
            yield from of_image(word.text, word.where)


def of_python(names: Names, text: str) -> Iterator[Installed]:
    """What a Python file asks for: in the header of a script, and of Modal's images."""
    yield from _header(text, names.path)
    for call in (node for node in ast.walk(names.tree) if isinstance(node, ast.Call)):
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        values = [names.value(argument) for argument in call.args]
        texts = [item for value in values for item in (value if isinstance(value, list) else [value])]
        for item in (item for item in texts if isinstance(item, str)):
            if method in _OF_MODAL:
                yield from required(item, names.where(call))
            elif method == "from_registry":
                yield from of_image(item, names.where(call))
            elif method == "run_commands":
                yield from installed([Word(word.strip("'\""), names.where(call)) for word in item.split()])


def _header(text: str, path: Path) -> Iterator[Installed]:
    """The dependencies of a script's own header (PEP 723)."""
    header = re.search(r"^# /// script\n((?:#.*\n)+?)# ///$", text, re.MULTILINE)
    lines = header[1].splitlines() if header else []
    try:
        dependencies = tomllib.loads("\n".join(line.removeprefix("#") for line in lines)).get("dependencies")
    except ValueError:
        return
    for item in dependencies if isinstance(dependencies, list) else ():
        line = text[: text.find(str(item))].count("\n") + 1
        yield from required(str(item), Where(path, line))


def is_release(bounds: str, release: str) -> bool:
    """Whether a release is what is asked for: one version, or bounds with commas between."""
    parts = re.findall(r"(===?|>=|<=|~=|!=|<|>|=)?\s*([^,\s]+)", bounds)
    return bool(parts) and all(_holds(operator, version, release) for operator, version in parts)


def _holds(operator: str, version: str, release: str) -> bool:
    ours, theirs = _numbers(release), _numbers(version)
    length = max(len(ours), len(theirs))
    first, second = (tuple(numbers) + (0,) * (length - len(numbers)) for numbers in (ours, theirs))
    if operator in ("", "=", "==", "==="):
        # Of conda one `=` asks for a beginning, as `.*` does.
        begins = version.endswith(".*") or operator == "="
        same = ours[: len(theirs)] == theirs if begins else first == second
        return same and bool(re.fullmatch(r"v?\d[\d.]*(\.\*)?(\+.*)?", version)) if theirs else version == release
    if operator == "~=":
        return first >= second and ours[: len(theirs) - 1] == theirs[:-1]
    compared = {">=": first >= second, "<=": first <= second, "!=": first != second}
    return compared.get(operator, first > second if operator == ">" else first < second)


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version's release, without what comes behind them."""
    release = re.match(r"v?(\d+(?:\.\d+)*)", version)
    return tuple(int(part) for part in release[1].split(".")) if release else ()
