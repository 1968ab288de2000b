"""Opens logs: streams sequences with both sides' log-probabilities, from one file or joined from two."""

from __future__ import annotations

import re
from collections.abc import Iterator
from collections.abc import Sequence as Several
from dataclasses import replace
from os.path import realpath
from pathlib import Path
from typing import Literal

from moeparity.errors import LogError, Where
from moeparity.logs.formats.format import Format
from moeparity.logs.formats.registry import Source, recognise
from moeparity.logs.join import Tally, by_id, in_order
from moeparity.logs.record import FEWEST, Sequence, blank, check
from moeparity.paths import is_folder, present

Join = Literal["id", "order"]
_PATTERNS = ("train_data_step*.jsonl", "token_exports/step_*/rank_*.jsonl", "step_*/rank_*.jsonl", "rank_*.jsonl")
"""Patterns of logs in a folder: NeMo-RL's, and prime-rl's from the run's folder down to a step's."""


class Log:
    """The sequences of some files, in the order of the files; each iteration reads the files again."""

    def __init__(
        self,
        rollout: list[Source],
        trainer: list[Source],
        join: Join,
        *,
        partial: bool,
        sampled: bool,
        tokenizer: Path | None = None,
    ) -> None:
        self._rollout, self._trainer, self._join, self._partial = rollout, trainer, join, partial
        self._sampled, self._tokenizer = sampled, tokenizer
        self._tally = Tally()

    @property
    def formats(self) -> tuple[Format, ...]:
        """The formats of the files, each once, the trainer's last."""
        return tuple(dict.fromkeys(source.format for source in (*self._rollout, *self._trainer)))

    @property
    def files(self) -> tuple[tuple[Path, Format], ...]:
        """Every file with its format, the trainer's last."""
        return tuple((source.path, source.format) for source in (*self._rollout, *self._trainer))

    @property
    def left_out(self) -> int:
        """How many sequences of the last reading only one side had; 0 unless `partial` is set."""
        return self._tally.left_out

    def __iter__(self) -> Iterator[Sequence]:
        """Raises LogError if a record is broken, an id occurs twice, or nothing is scored."""
        ids: set[str] = set()
        scored, alive = 0, False
        apart: Sequence | None = None
        self._tally = Tally()
        for sequence in self._sequences():
            if sequence.id in ids:
                raise LogError(f"{sequence.where}: sequence {sequence.id} comes a second time. Is a file given twice?")
            ids.add(sequence.id)
            scored += int(sequence.mask.sum())
            alive = alive or not blank(sequence)
            apart = sequence if apart is None and sequence.retokenised is not None else apart
            yield check(sequence)
        where = ", ".join(str(Where(source.path)) for source in self._rollout[:3])
        if not scored and apart is not None and apart.retokenised is not None:
            of = apart.retokenised
            raise LogError(
                f"{apart.where}: retokenised: no token can be compared, since no scored one stands behind the same "
                f"text on both sides. Token {of.first} of sequence {apart.id} is the first that differs "
                f"({of.kinds[0]}): {of.says}. Score the sampler's token ids."
            )
        if not scored:
            raise LogError(f"{where}: no token is scored: the masks leave none of {len(ids)} sequences.")
        if not alive and scored >= FEWEST:
            sides = "the sampler's" if self._sampled else "both sides'"
            raise LogError(
                f"{where}: {sides} log-probabilities are 0 at all {scored} scored tokens: placeholders, or what a "
                "greedy sampler reports of its own choice, and a trainer that copies it. Log them with raw "
                "log-probabilities."
            )

    def _sequences(self) -> Iterator[Sequence]:
        if self._sampled:
            return (_of_sampler(sequence) for source in self._rollout for _, sequence in source.sequences())
        if not self._trainer:
            return (_two_sided(sequence) for source in self._rollout for _, sequence in source.sequences())
        if self._join == "order":
            return in_order(self._rollout, self._trainer, self._tokenizer)
        sides = self._rollout, self._trainer
        return by_id(*sides, self._tally, partial=self._partial, tokenizer=self._tokenizer)


def open(
    paths: Several[Path],
    *,
    trainer: Several[Path] = (),
    format: str | None = None,
    trainer_format: str | None = None,
    join: Join = "id",
    partial: bool = False,
    tokenizer: Path | None = None,
) -> Log:
    """Open logs of the sampler's side or of both sides; with `trainer`, logs of the trainer's side are joined to them.

    A folder stands for the logs in it. format, trainer_format: names in `FORMATS`, if contents leave the format open.
    join: matches sequences by id or by position; in either case token ids must be equal, or are aligned by text.
    partial: leaves out sequences that only one side has. tokenizer: a tokenizer.json, or a folder with one, that gives
    the text of both sides' ids. Raises LogError; the later records of a file are checked when they are read.
    """
    if not paths:
        raise LogError("no log given; expected at least one file.")
    common = {realpath(path) for path in paths} & {realpath(path) for path in trainer}
    if common:
        raise LogError(
            f"{Where(Path(min(common)))}: given as the sampler's log and as the trainer's: one column against itself "
            "differs nowhere. Give --trainer the file that the trainer scored, or leave it out where the log has both."
        )
    sources = [recognise(path, "rollout", format) for path in _files(paths)]
    trainer_sources = [recognise(path, "trainer", trainer_format) for path in _files(trainer)]
    file = None if tokenizer is None else _tokenizer_file(tokenizer)
    return Log(sources, trainer_sources, join, partial=partial, sampled=False, tokenizer=file)


def open_sampled(paths: Several[Path], *, format: str | None = None) -> Log:
    """Open logs of the sampler's side, as `open` does; they may have the trainer's side or not."""
    if not paths:
        raise LogError("no log given; expected at least one file.")
    return Log([recognise(path, "rollout", format) for path in _files(paths)], [], "id", partial=False, sampled=True)


def _tokenizer_file(path: Path) -> Path:
    file = path / "tokenizer.json" if is_folder(path) else path
    if not present(file):
        raise LogError(f"{Where(path)}: there is no tokenizer.json. Give the one that made the ids of both sides.")
    return file


def _of_sampler(sequence: Sequence) -> Sequence:
    """The sequence, without placeholders for the trainer's side. Raises LogError if it has no log-probabilities of the
    sampler.
    """
    if sequence.rollout is None:
        raise LogError(f"{sequence.where}: no log-probabilities of the sampler. Give the sampler's log.")
    is_placeholder = sequence.trainer is None or not bool(sequence.trainer[sequence.mask].any())
    return replace(sequence, trainer=None) if is_placeholder else sequence


def _two_sided(sequence: Sequence) -> Sequence:
    """The sequence. Raises LogError unless the file has both sides."""
    for side, values in (("sampler", sequence.rollout), ("trainer", sequence.trainer)):
        if values is None:
            missing = "--trainer FILE" if side == "trainer" else "the sampler's log, and this one as --trainer"
            raise LogError(f"{sequence.where}: no log-probabilities of the {side}. Give {missing}.")
    return sequence


def _files(paths: Several[Path]) -> list[Path]:
    """The files, with folders replaced by the logs in them; numbers in names are sorted as numbers."""
    files: list[Path] = []
    for path in paths:
        if not is_folder(path):
            files.append(path)
            continue
        inside = next(
            (matches for pattern in _PATTERNS if (matches := sorted(path.glob(pattern), key=_natural_key))), []
        )
        if not inside:
            raise LogError(f"{Where(path)}: a folder without {' or '.join(_PATTERNS)}. Name the files.")
        files += inside
    return files


def _natural_key(path: Path) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", str(path))]
