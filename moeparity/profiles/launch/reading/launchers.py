"""What stands before a program: `exec`, `nohup`, `uv run`, `torchrun`, `ray job submit ... --`, `docker run IMAGE`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from moeparity.profiles.launch.reading import hardware, releases
from moeparity.profiles.launch.reading.shell.interpret import interpreted
from moeparity.profiles.launch.reading.shell_words import Command, Word, conjunction, is_known, plain, unresolved
from moeparity.profiles.launch.source import Note

_VARIABLES_OF = ("dotenv", "dotenvx", "direnv", "envdir", "doppler", "infisical")
"""Programs that start another one with variables of a file or a vault."""
_PLAIN = (
    *("exec", "nohup", "command", "time", "setsid", "stdbuf", "sudo", "nice", "ionice", "numactl", "taskset"),
    *("timeout", "env", "xargs", "catchsegv", "unbuffer", "script", "srun", "mpirun", "mpiexec", "nsys", "ncu"),
    *("torchrun", "accelerate", "deepspeed", "uv", "uvx", "poetry", "pixi", "conda", "mamba", "micromamba", "hatch"),
    *("dumb-init", "tini", "gosu", "apptainer", "singularity", "enroot", "py-spy", "rocprof", "ray", "bash", "sh"),
    *("kubectl", "ssh", "tmux", "screen"),
    *_VARIABLES_OF,
)
"""Programs that start another one, which is found behind their own options."""
PROGRAMS = ("vllm", "sglang", "trl", "rl", "inference", "trainer", "torchtitan", "sft", "trtllm-serve")
"""Programs that are known by a name of their own; of every other it is the Python module or script."""
_LAUNCHING_MODULES = (
    *("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"),
    *("accelerate.commands.accelerate_cli", "deepspeed.launcher.runner", "deepspeed.launcher.launch"),
)
"""Python modules that start another program."""
_OF_MODULES = ("torchrun", "accelerate", "deepspeed", "uv", "poetry", "pixi", "hatch", *_LAUNCHING_MODULES)
"""Those whose `-m` or `--module` names a Python module."""
_OF_UV = (
    *("--extra", "--no-extra", "--group", "--no-group", "--only-group", "--with", "--with-editable", "--from", "-p"),
    *("--with-requirements", "--python", "--package", "--project", "--directory", "--index", "--index-url"),
    *("--extra-index-url", "--config-file"),
)
_OF_CONDA = ("-n", "--name", "-p", "--prefix", "--cwd")
_VALUED = {
    **dict.fromkeys(("uv", "uvx"), _OF_UV),
    **dict.fromkeys(("conda", "mamba", "micromamba"), _OF_CONDA),
    "srun": ("-J", "--job-name", "-p", "--partition", "-w", "--nodelist", "-A", "--account", "-q", "--qos"),
    "numactl": ("-m", "-N", "-C", "-i", "--membind", "--cpunodebind", "--physcpubind", "--interleave", "--preferred"),
    "tmux": ("-s", "-n", "-t", "-c"),
    "screen": ("-S", "-t"),
}
"""By launcher, options whose value may be called as a program is."""
_CONTAINERS = ("docker", "podman", "nerdctl")
_SERVES = {f"vllm/vllm-openai{of}": ("vllm", "serve") for of in ("", "-rocm", "-cpu", "-xpu")}
"""Images whose entry point is a program known here."""
_NO_VALUE = re.compile(
    r"-[itdP]+|--(interactive|tty|detach|rm|init|privileged|read-only|publish-all|no-healthcheck|oom-kill-disable"
    r"|sig-proxy|quiet|disable-content-trust)"
)
_APART = ("ray", "kubectl", "ssh", "sudo", "docker", "podman", "nerdctl")
"""Programs that may hand on none of the variables that are set before them."""
_DECIDES = re.compile(r"(VLLM|SGLANG|SGL|NVTE|NCCL|CUBLAS|TORCH|DEEPEP)_\w+")
"""Variables that may decide numerics."""
_DEEPEST = 8


@dataclass(frozen=True, slots=True)
class Started:
    """A program that is started: `name` is a console program, a Python module or a script's path; its arguments."""

    name: str
    arguments: tuple[Word, ...]
    environment: tuple[tuple[str, Word], ...]
    command: Command


def started(command: Command, notes: list[Note], depth: int = 0) -> Iterator[Started]:
    """The programs that a command line starts, if any is known; `notes` are added to."""
    words = list(command.words)
    head = _base(words[0]) if words else ""
    if depth > _DEEPEST or not words:
        return
    if not depth and any(_base(word) in releases.INSTALLERS for word in words):
        notes += releases.installed(words)
    if not depth and head not in _CONTAINERS:
        notes += releases.of_launcher(words)
    if head.startswith("-"):
        yield Started("", tuple(words), command.environment, command)
    elif head in _CONTAINERS:
        yield from _container(command, notes, depth)
    elif head in PROGRAMS:
        yield Started(head, tuple(words[1:]), command.environment, command)
    elif re.fullmatch(r"python[\d.]*", head):
        yield from _python(command, words[1:], notes)
    elif head.endswith(".py"):
        yield Started(words[0].text, tuple(words[1:]), command.environment, command)
    elif head in _PLAIN:
        yield from _behind(command, notes, depth)


def _base(word: Word) -> str:
    return word.text.rpartition("/")[2]


def _python(command: Command, words: Sequence[Word], notes: list[Note]) -> Iterator[Started]:
    """`python [-u] -m module`, or `python script.py`."""
    for place, word in enumerate(words):
        if word.text == "-m" and place + 1 < len(words):
            module = words[place + 1].text
            if module in _LAUNCHING_MODULES:
                yield from _behind(replace(command, words=tuple(words[place + 1 :])), notes, 1)
            else:
                yield Started(module, tuple(words[place + 2 :]), command.environment, command)
            return
        if word.text in ("-c", "-"):
            notes.append(Note(says="a Python program on the command line is not read", where=word.where))
            return
        if not word.text.startswith("-"):
            yield Started(word.text, tuple(words[place + 1 :]), command.environment, command)
            return


def _behind(command: Command, notes: list[Note], depth: int) -> Iterator[Started]:
    """The first program behind a launcher's own words; variables that it sets are the program's."""
    words = command.words
    head = _base(words[0])
    _lost(command, head, notes)
    environment = [*command.environment, *(_submitted(words, notes) if head == "ray" else ())]
    if head in _VARIABLES_OF:
        notes.append(_unknown_variables(head, words[0]))
    if head == "xargs":
        notes.append(Note(says="`xargs` adds words from its input, which are not known", where=words[0].where))
    if head in ("bash", "sh"):
        script = next((word for word in words[1:] if not word.text.startswith("-")), None)
        if script is not None:
            says = f"`{head} {plain(script.text)}` starts another script, which is not read"
            notes.append(Note(says=says, where=script.where))
        return
    if head == "ray" and [word.text for word in words[1:3]] != ["job", "submit"]:
        return
    for place in range(1, len(words)):
        word = words[place]
        environment = _with_word(head, words, place, environment, notes)
        if words[place - 1].text in _VALUED.get(head, ()):
            continue
        rest = replace(command, words=words[place:], environment=tuple(environment))
        if _base(word) in ("bash", "sh") and any(w.text in ("-c", "-lc") for w in words[place + 1 : place + 4]):
            yield from _script(rest, notes, depth)
            return
        if _starts(word):
            yield from started(rest, notes, depth + 1)
            return
        if word.text in ("-m", "--module") and head in _OF_MODULES and place + 1 < len(words):
            yield Started(words[place + 1].text, words[place + 2 :], tuple(environment), command)
            return


def _with_word(
    head: str, words: Sequence[Word], place: int, environment: list[tuple[str, Word]], notes: list[Note]
) -> list[tuple[str, Word]]:
    """The variables that a program is given once a word of its launcher is met."""
    word, before = words[place], words[place - 1].text
    if re.match(r"--env-file|--export(=.*=|$)", word.text):
        notes.append(Note(says=f"`{plain(word.text)}` is not read", where=word.where, opens="environment"))
    assigns = head in ("env", "sudo") or word.text.startswith("--env=") or before in ("--env", "-x")
    if assigns and not is_known(word.text.partition("=")[0]):
        notes.append(_unknown_variables(f"{head} {word.text}", word))
    variable = re.fullmatch(r"(?:--env=)?([A-Za-z_]\w*)=(.*)", word.text, re.DOTALL)
    if variable and assigns:
        return [*environment, (variable[1], replace(word, text=variable[2]))]
    return _without(environment, word.text, before) if head == "env" else environment


def _unknown_variables(text: str, word: Word) -> Note:
    says = f"`{plain(text)}` sets variables that are not known"
    return Note(says=says, where=word.where, opens="environment")


def _without(environment: list[tuple[str, Word]], word: str, before: str) -> list[tuple[str, Word]]:
    """Variables that `env` leaves, by a word of its own and the one before: `-i`, `-u NAME`, `--unset=NAME`."""
    if word in ("-i", "-", "--ignore-environment"):
        return []
    removed = word if before in ("-u", "--unset") else word.removeprefix("--unset=").removeprefix("-u")
    return [(name, value) for name, value in environment if name != removed]


def _lost(command: Command, head: str, notes: list[Note]) -> None:
    """Say that variables may not reach the program."""
    names = [name for name, _ in command.environment if _DECIDES.fullmatch(name)]
    keeps = head == "sudo" and any(word.text in ("-E", "--preserve-env") for word in command.words[1:4])
    if names and head in _APART and not keeps:
        says = f"`{head}` may not hand on {', '.join(names)}, set before it"
        notes.append(Note(says=says, where=command.words[0].where))


def _starts(word: Word) -> bool:
    base = _base(word)
    return is_known(word.text) and (
        base in (*PROGRAMS, *_PLAIN, *_CONTAINERS) or base.endswith(".py") or bool(re.fullmatch(r"python[\d.]*", base))
    )


def _submitted(words: Sequence[Word], notes: list[Note]) -> Iterator[tuple[str, Word]]:
    """The variables of `--runtime-env-json`."""
    for place, word in enumerate(words):
        name, equals, attached = word.text.partition("=")
        if word.text == "--":
            return
        if name == "--runtime-env":
            notes.append(Note(says=f"`{plain(word.text)}` is not read", where=word.where, opens="environment"))
        if name != "--runtime-env-json":
            continue
        text = attached if equals else (words[place + 1].text if place + 1 < len(words) else "")
        try:
            # What is not resolved stands between control characters, and may hold quotes of its own.
            quoted = re.sub("\0[^\0]*\0", lambda part: json.dumps(part[0])[1:-1], text)
            variables = json.loads(quoted, strict=False).get("env_vars", {})
        except (ValueError, RecursionError, AttributeError):
            says = "`--runtime-env-json` is not resolved: the variables that it sets are not known"
            notes.append(Note(says=says, where=word.where, opens="environment"))
            return
        if isinstance(variables, dict):
            yield from ((str(name), replace(word, text=str(value))) for name, value in variables.items())


def _script(command: Command, notes: list[Note], depth: int) -> Iterator[Started]:
    """`bash -c TEXT`: the programs of that text."""
    words = command.words
    place = next(i for i, word in enumerate(words) if word.text in ("-c", "-lc"))
    text = words[place + 1] if place + 1 < len(words) else None
    if text is None or not text.text.replace("\0", "").strip() or re.fullmatch(r"\0[^\0]*\0", text.text):
        says = f"`{plain(words[0].text)} -c` is given a script that is not resolved"
        notes.append(Note(says=says, where=words[0].where, opens="options"))
        return
    for inner in _commands(text, notes):
        environment = (*command.environment, *inner.environment)
        further = replace(inner, environment=environment, condition=conjunction(command.condition, inner.condition))
        yield from started(further, notes, depth + 1)


def _commands(text: Word, notes: list[Note]) -> Iterator[Command]:
    """The commands of a script, parts of which are filled in before a shell sees it, and not known."""
    parts = re.findall(r"\0([^\0]*)\0", text.text)
    standing = {f"__part_{number}__": unresolved(part) for number, part in enumerate(parts)}
    script = text.text
    for name, part in standing.items():
        script = script.replace(part, name, 1)
    scope = interpreted(script, text.where.path, text.where.line or 1)

    def open_again(word: Word) -> Word:
        return replace(word, text=re.sub(r"__part_\d+__", lambda name: standing.get(name[0], name[0]), word.text))

    notes += scope.notes.values()
    for command in scope.commands:
        yield replace(
            command,
            words=tuple(map(open_again, command.words)),
            environment=tuple((name, open_again(word)) for name, word in command.environment),
        )


def contained(
    image: str, entrypoint: Sequence[Word], command: Command, notes: list[Note], depth: int = 0
) -> Iterator[Started]:
    """What a container runs: its entry point, else the image's where that is known, and the words given to it."""
    name = image.partition("@")[0]
    name = name.rpartition(":")[0] if ":" in name.rpartition("/")[2] else name
    notes += [*releases.of_image(image, command.where), *hardware.of_image(image, command.where)]
    start: tuple[Word, ...] = tuple(entrypoint)
    if not start:
        known_start = next((words for end, words in _SERVES.items() if name.endswith(end)), ())
        start = tuple(Word(word, command.where) for word in known_start)
    words = (*start, *command.words)
    whole = replace(command, words=words)
    if words and _base(words[0]) in ("bash", "sh") and any(word.text in ("-c", "-lc") for word in words[1:4]):
        yield from _script(whole, notes, depth + 1)
    else:
        yield from started(whole, notes, depth + 1)


_IMAGE = re.compile(r"[\w.-]+(:\d+)?(/[\w.-]+)+(:[\w.-]+)?(@.*)?")


def _hides_options(words: Sequence[Word]) -> bool:
    """Whether a word that is not resolved stands where a container's options do: its image comes behind."""
    first = next((word for word in words if is_known(word.text)), None)
    return not is_known(words[0].text) and first is not None and bool(_IMAGE.fullmatch(first.text))


def _container(command: Command, notes: list[Note], depth: int) -> Iterator[Started]:
    """`docker run [options] IMAGE words`."""
    words = list(command.words)
    verb = next((place for place, word in enumerate(words[:4]) if word.text in ("run", "exec")), None)
    if verb is None:
        return
    outside = dict(command.environment)
    environment: list[tuple[str, Word]] = []
    entrypoint: list[Word] = []
    rest = words[verb + 1 :]
    while rest and (rest[0].text.startswith("-") or _hides_options(rest)):
        word = rest.pop(0)
        if not is_known(word.text.partition("=")[0]):
            notes.append(_unknown_variables(f"{_base(words[0])} {word.text}", word))
            continue
        name, equals, text = word.text.partition("=")
        if not equals and not _NO_VALUE.fullmatch(name) and rest:
            text = rest.pop(0).text
        if name in ("-e", "--env"):
            variable, assigned, value = text.partition("=")
            # Without a value docker hands on what the shell has.
            passed = outside.pop(variable, replace(word, text=unresolved(f"${variable}")))
            environment.append((variable, replace(word, text=value) if assigned else passed))
        elif name == "--env-file":
            says = f"`--env-file {plain(text)}` is not read"
            notes.append(Note(says=says, where=word.where, opens="environment"))
        elif name == "--device":
            notes += hardware.of_device(text, word.where)
        elif name == "--entrypoint" and text:
            entrypoint = [replace(word, text=text)]
    _lost(replace(command, environment=tuple(outside.items())), _base(words[0]), notes)
    if rest:
        inner = replace(command, words=tuple(rest[1:]), environment=tuple(environment))
        yield from contained(rest[0].text if words[verb].text == "run" else "", entrypoint, inner, notes, depth)
