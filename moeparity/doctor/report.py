"""An examination as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from moeparity.metrics.verdict import Interval
from moeparity.output.json import to_json
from moeparity.search.blame import Blame

SCHEMA = "moeparity.examination/1"

BEYOND = 2.0
"""A difference that is surely more than this many times what legal arithmetic makes is more than noise."""
A_FEW = 6
"""Up to so many rivals are all named, each with what would tell it from the first."""
Party = Literal["sampler", "trainer"]
PARTIES: Final[tuple[Party, ...]] = ("sampler", "trainer")
Answer = Literal["named", "logged", "found", "as configured", "noise", "not explained", "wrong checkpoint", "undecided"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What one party recorded, against its simulation with nothing wrong: mean |delta| in nats per token."""

    party: Party
    profile: str
    tokens: int
    mean_abs_delta: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Clue:
    """What a file tells by itself, without a simulation of the log.

    cause: the cause that it names; "" if it names none. change: what to do about the cause. command: the command that
    says more.
    """

    says: str
    cause: str = ""
    change: str = ""
    command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A hypothesis about one party, with what it explains of the difference.

    share: 1 - sum (d - x)^2 / sum d^2 over the judged sequences, where d is the recorded difference of a token and x
    the simulated one; 1 if every token's difference comes out, at most 0 if it explains nothing. slope: the factor with
    which x comes nearest to d; 1 for the true cause. size: mean |x| in nats per token. number: the hypothesis' open
    number as it was solved for; None if it has none, or if it was tried on a grid alone. alike: others that make the
    same difference at the same party, which log-probabilities can't tell from it.
    """

    name: str
    says: str
    party: Party | None
    share: Interval
    slope: Interval
    size: float
    change: str
    number: Interval | None = None
    alike: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Legal:
    """A statistic of the difference, by its name in `moeparity metrics`, in nats, or `flipped`, the fraction of tokens
    with other routes: as recorded; in the middle of what legal arithmetic makes; and the bound below which a clean run
    lies at the level. The bound is the gate to set.
    """

    name: str
    recorded: float
    middle: float
    bound: float

    @property
    def is_inside(self) -> bool:
        """Whether legal arithmetic may make as much."""
        return self.recorded <= self.bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """What legal arithmetic makes of these tokens, from `engines` plans without a mistake, some of them drawn."""

    level: float
    engines: int
    statistics: tuple[Legal, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """The sample of sequences on which hypotheses ran first: how many it has, and how many hypotheses, each about one
    party, it ruled out. All others ran on all sequences.
    """

    sequences: int
    ruled_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Two:
    """Two causes at once, and the share of the difference that both explain. Of each, the share is how much more both
    explain than the other alone, and the slope that of what it makes beside the other.
    """

    causes: tuple[Explanation, Explanation]
    share: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """The answer, and what it rests on.

    evidence: what was found and what it was taken for, in at most three sentences. aside: what is not used, with the
    reason. clues: what files tell by themselves. size: mean |d| in nats per token. left: the same of what the best
    hypothesis leaves. legal: the same of the largest difference between two engines that make no mistake, `legal_pair`;
    NaN if nothing was simulated, and so is a size of a log of one side then. logged: causes that the log alone names.
    explanations: the best hypotheses, the first one explaining most. is_stopped: it ended before all were tried. tried:
    how many were simulated. sampled: of which sequences at first, None if of all. rivals: those that the data do not
    tell from the first. two: the causes, if two are named at once. noise: what legal arithmetic makes; None if too few
    engines fit the model. parting: what would tell hypotheses apart that explain alike. where: in which tokens the
    difference lies. asks: what would tell more, most informative first.
    """

    answer: Answer
    blame: Blame
    evidence: tuple[str, ...]
    aside: tuple[str, ...]
    clues: tuple[Clue, ...]
    records: tuple[Record, ...]
    size: Interval
    left: Interval
    legal: float
    legal_pair: tuple[str, ...]
    logged: tuple[str, ...]
    explanations: tuple[Explanation, ...]
    rivals: tuple[str, ...]
    tried: int
    sequences: int
    tokens: int
    asks: tuple[str, ...]
    sampled: Sampled | None = None
    two: Two | None = None
    noise: Noise | None = None
    is_stopped: bool = False
    parting: tuple[str, ...] = ()
    where: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 for noise or what the profiles explain, 1 for a cause or a fault that nothing explains, 3 undecided."""
        if self.answer in {"noise", "as configured"}:
            return 0
        return 3 if self.answer == "undecided" else 1

    def to_json(self) -> str:
        """The examination as strict JSON."""
        return to_json(SCHEMA, self)
