"""What a run left behind: the given files and folders, sorted by what each of them is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from moeparity import paths
from moeparity.doctor.kinds import EvidenceKind, kind_of_file, kind_of_folder
from moeparity.errors import CheckpointError, LogError, MoeparityError, Where, display_path, listed
from moeparity.logs.opening import Log, open_sampled
from moeparity.logs.opening import open as open_both
from moeparity.logs.record import Sequence as Logged
from moeparity.logs.tokens import refuse_without_prompt, routes_shape
from moeparity.plan.config import Config

_PREVIOUS = "previous"
_ENDS = ".schedule.jsonl", ".tokens.jsonl"
"""The endings of the files in which a server's plugin writes its steps and their tokens (docs/served.md)."""
_DEEPEST = 4
"""How deep folders are searched: the fingerprints that a guard wrote beside a job's journals lie so far down."""
_MOST = 2000


@dataclass(frozen=True, slots=True)
class Stranger:
    """A file or folder that is not used, with the reason."""

    path: Path
    reason: str


@dataclass(frozen=True, kw_only=True)
class Files:
    """The given files and folders, by what each was taken for.

    checkpoint: the folder of the weights that both sides were to have. adapter: that of a LoRA adapter which they were
    to have beside these. previous: that of the weights, or of the adapter, before an update. launches: files that start
    an engine, or in which one wrote what it resolved. schedules: a server's steps. journals: folders of
    ranks' journals. strangers: what is not used.
    """

    checkpoint: Path | None
    previous: Path | None
    adapter: Path | None = None
    launches: tuple[Path, ...] = ()
    schedules: tuple[Path, ...] = ()
    traces: tuple[Path, ...] = ()
    fingerprints: tuple[Path, ...] = ()
    journals: tuple[Path, ...] = ()
    strangers: tuple[Stranger, ...] = ()

    @property
    def previous_checkpoint(self) -> Path | None:
        """The weights before an update; None if there are none, or an adapter alone."""
        is_adapter = self.previous is not None and kind_of_folder(self.previous) == "adapter"
        return None if is_adapter else self.previous


@dataclass(frozen=True, kw_only=True)
class Evidence(Files):
    """Files with a log among them.

    logs: files with log-probabilities of the sampler, or of both sides. trainer_logs: files of the trainer's alone,
    joined to them by id. sequences: how many the logs hold.
    """

    checkpoint: Path
    logs: tuple[Path, ...]
    sequences: int
    trainer_logs: tuple[Path, ...] = ()

    @property
    def tokenizer(self) -> Path | None:
        """The checkpoint's tokenizer.json, which aligns ids where the sides' differ; None if it has none."""
        file = self.checkpoint / "tokenizer.json"
        return file if paths.present(file) else None

    def opened(self) -> Log:
        """The logs, streamed. Raises LogError."""
        if self.trainer_logs:
            return open_both(self.logs, trainer=self.trainer_logs, partial=True, tokenizer=self.tokenizer)
        return open_sampled(self.logs)


class NoLogError(MoeparityError):
    """There is no log among these files; some of them may tell something all the same."""

    def __init__(self, message: str, files: Files) -> None:
        super().__init__(message)
        self.files = files


def find(
    places: Sequence[Path],
    checkpoint: Path | None = None,
    previous: Path | None = None,
    trainer_logs: Sequence[Path] = (),
    adapter: Path | None = None,
) -> Evidence:
    """Sort files and folders by their contents.

    Of a folder that is nothing by itself, each file and each folder in it is looked at. A checkpoint, or else an
    adapter, in a folder called `previous` is the one before the update. What is of no use is put aside with its reason.
    Raises NoLogError without a log, CheckpointError if there is no checkpoint, or more than one that could be meant, or
    more than one adapter.
    """
    by_kind: dict[EvidenceKind, list[Path]] = {}
    strangers: list[Stranger] = []
    for path, kind in _looked_at(places):
        if isinstance(kind, str):
            by_kind.setdefault(kind, []).append(path)
        else:
            strangers.append(Stranger(path, str(kind)))
    of_trainer = {path.resolve() for path in trainer_logs}
    logs = [path for path in by_kind.get("log", []) if path.resolve() not in of_trainer]
    others, before = _current_and_previous(by_kind.get("checkpoint", []), checkpoint, previous)
    adapters, before = _current_and_previous(by_kind.get("adapter", []), adapter, before)
    files = Files(
        checkpoint=others[0] if len(others) == 1 else None,
        previous=before,
        adapter=adapters[0] if len(adapters) == 1 else None,
        launches=tuple(by_kind.get("launch", [])),
        schedules=tuple(by_kind.get("schedule", [])),
        traces=tuple(by_kind.get("trace", [])),
        fingerprints=tuple(by_kind.get("fingerprint", [])),
        journals=tuple(dict.fromkeys(path.parent for path in by_kind.get("journal", []))),
        strangers=tuple(strangers),
    )
    if not logs:
        raise NoLogError(_no_log(places, strangers), files)
    current = _only(others)
    _refuse_several(adapters)
    # A trainer's log has the ids of a program's own log, not those by which its server counts.
    sound, unsound = _sound(logs, current, set() if trainer_logs else {path.name for path in files.schedules})
    of_logs = {
        "checkpoint": current,
        "logs": tuple(log.path for log in sound),
        "sequences": sum(len(log.ids) for log in sound),
        "trainer_logs": tuple(trainer_logs),
        "strangers": (*strangers, *unsound),
    }
    return Evidence(**vars(files) | of_logs)


def _looked_at(places: Sequence[Path]) -> Iterator[tuple[Path, EvidenceKind | MoeparityError]]:
    """Files and folders, each with what it is or why it is nothing."""
    looked_at, walked = 0, set[Path]()
    for place in places:
        if not paths.present(place):
            raise MoeparityError(f"{Where(place)}: there is no such file or folder. Check the path.")
        for path, kind in _inside(place, 0, walked):
            looked_at += 1
            if looked_at > _MOST:
                raise MoeparityError(
                    f"{Where(place)}: more than {_MOST:,} files: too many for one run. Name the files, or a "
                    "folder with fewer."
                )
            yield path, kind


def _inside(path: Path, depth: int, walked: set[Path]) -> Iterator[tuple[Path, EvidenceKind | MoeparityError]]:
    try:
        if not paths.is_folder(path):
            yield path, kind_of_file(path)
            return
        kind = kind_of_folder(path)
        is_new = kind is None and path.resolve() not in walked
        walked.add(path.resolve())
        children = sorted(path.iterdir()) if is_new else []
    except OSError as error:
        yield path, LogError(f"{Where(path)}: cannot be read: {error.strerror}.")
    except MoeparityError as error:
        yield path, error
    else:
        if kind is not None:
            yield path, kind
        for child in children if depth < _DEEPEST else ():
            if not child.name.startswith((".", "__pycache__")):
                yield from _inside(child, depth + 1, walked)


def _no_log(places: Sequence[Path], strangers: Sequence[Stranger]) -> str:
    says = (
        f"doctor: no log of log-probabilities in {listed(display_path(path) for path in places)}. Give the file that "
        "the sampler or the trainer wrote (docs/logs.md)."
    )
    return "\n".join([says, *(f"not taken for one: {each.reason}" for each in strangers[:3])])


@dataclass(frozen=True, slots=True)
class _Read:
    """A log that was read to its end: the ids of its sequences, their tokens, hashed, whether the trainer recorded
    any, and the shapes of its routes.
    """

    path: Path
    ids: tuple[str, ...]
    tokens: frozenset[int]
    two_sided: bool
    shapes: frozenset[tuple[int, ...]]


def steps_of(log: Path) -> str:
    """The name of the file in which a server's plugin writes the steps of a log's tokens."""
    end, tokens_end = _ENDS
    return f"{log.name.removesuffix(tokens_end)}{end}"


def _sound(logs: Sequence[Path], checkpoint: Path, schedules: set[str]) -> tuple[list[_Read], list[Stranger]]:
    """The logs that can be used: they can be read to their ends, hold tokens of the checkpoint's vocabulary, and are of
    one run, as the ids of their sequences and the shape of their routes say. If two logs have the same sequences, the
    one with both sides is used, else that of a server's steps, of which `schedules` are the names; it has ids of its
    own. Raises LogError if there is none, CheckpointError without a vocabulary.
    """
    vocabulary = int(Config(checkpoint / "config.json")["vocab_size"])
    whole: list[_Read] = []
    aside: list[Stranger] = []
    for path in logs:
        try:
            whole.append(_read(path, checkpoint, vocabulary))
        except LogError as error:
            aside.append(Stranger(path, str(error)))
    if not whole:
        raise LogError("\n".join(each.reason for each in aside))
    sound: list[_Read] = []
    owners: dict[str, Path] = {}
    shapes: frozenset[tuple[int, ...]] = frozenset()
    for log in sorted(whole, key=lambda log: (not log.two_sided, steps_of(log.path) not in schedules)):
        common = next((name for name in log.ids if name in owners), None)
        served_twin = next((of for of in sound if steps_of(of.path) in schedules and of.tokens == log.tokens), None)
        if common is not None:
            aside.append(Stranger(log.path, _double(log.path, f"sequence {common} is", owners[common])))
        elif served_twin is not None:
            aside.append(Stranger(log.path, _double(log.path, "sequences are, under other ids,", served_twin.path)))
        elif len(shapes | log.shapes) > 1:
            aside.append(
                Stranger(log.path, f"{Where(log.path)}: its routes are of another shape than {sound[0].path}'s")
            )
        else:
            sound.append(log)
            owners |= dict.fromkeys(log.ids, log.path)
            shapes |= log.shapes
    return sound, aside


def _read(path: Path, checkpoint: Path, vocabulary: int) -> _Read:
    """Raises LogError for a log that cannot be scored."""
    ids: list[str] = []
    shapes: set[tuple[int, ...]] = set()
    tokens: set[int] = set()
    two_sided = False
    for sequence in open_sampled([path]):
        refuse_without_prompt(sequence)
        _refuse_unknown_tokens(sequence, checkpoint, vocabulary)
        ids.append(sequence.id)
        tokens.add(hash(sequence.token_ids.numpy().tobytes()))
        two_sided |= sequence.trainer is not None
        shapes |= {shape for shape in (routes_shape(sequence),) if shape is not None}
    if len(shapes) > 1:
        raise LogError(f"{Where(path)}: its routes are of several shapes; expected [layers, top_k], the same of all.")
    return _Read(path, tuple(ids), frozenset(tokens), two_sided, frozenset(shapes))


def _refuse_unknown_tokens(sequence: Logged, checkpoint: Path, vocabulary: int) -> None:
    """Raises LogError for a token, or a pad beside the tokens, that the model has no embedding of."""
    ids = (
        sequence.token_ids
        if sequence.pads is None
        else torch.cat([sequence.token_ids, torch.tensor([sequence.pads.id])])
    )
    unknown = ids[(ids < 0) | (ids >= vocabulary)]
    if unknown.numel():
        raise LogError(
            f"{sequence.where}: sequence {sequence.id} holds the token id {int(unknown[0])}; expected ids of the "
            f"vocabulary of {display_path(checkpoint)}, 0..{vocabulary - 1}. Give the log of a run of this model, or "
            "that run's weights as --checkpoint."
        )


def _double(path: Path, sequences: str, owner: Path) -> str:
    return (
        f"{Where(path)}: its {sequences} in {display_path(owner)} too; if it is of the trainer alone, give "
        "it as --trainer-log, and if of another run, by itself"
    )


def _current_and_previous(
    folders: Sequence[Path], current: Path | None, previous: Path | None
) -> tuple[list[Path], Path | None]:
    """Of folders of one kind those that may be what both sides were to have, and what they had before the update."""
    others = [folder for folder in folders if folder not in (current, previous)]
    if previous is None:
        previous = next((folder for folder in others if folder.name == _PREVIOUS), None)
        others = [folder for folder in others if folder != previous]
    return others if current is None else [current], previous


def _only(others: Sequence[Path]) -> Path:
    """The checkpoint that both sides were to have. Raises CheckpointError if there is none, or more than one."""
    if len(others) == 1:
        return others[0]
    if not others:
        raise CheckpointError(
            "doctor: no checkpoint. Give the folder of the weights that both sides were to have (config.json and "
            "safetensors), in the evidence or as --checkpoint."
        )
    raise CheckpointError(
        f"doctor: {len(others)} checkpoints: {listed(display_path(folder) for folder in others)}. Name the one that "
        "both sides were to have with --checkpoint, and the one before the update with --previous."
    )


def _refuse_several(adapters: Sequence[Path]) -> None:
    if len(adapters) > 1:
        raise CheckpointError(
            f"doctor: {len(adapters)} adapters: {listed(display_path(folder) for folder in adapters)}. Name the one "
            "that both sides were to have with --adapter, and the one before the update with --previous."
        )
