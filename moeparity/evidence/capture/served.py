"""A server in a captured process: its steps are the trace's, with their rows, and only who has the model writes one."""

from __future__ import annotations

from moeparity.evidence.capture.place import Places
from moeparity.evidence.capture.recorder import Recorder
from moeparity.evidence.trace.records import Batch
from moeparity.hooks.vllm_steps import StepRows


class Served:
    """Watches vLLM (moeparity/hooks/vllm.py) for one capture.

    A process that starts an engine or schedules for one computes next to nothing, and would stand in the trace as a
    rank of its own: it writes nothing until a model is loaded in it.
    """

    def __init__(self, recorder: Recorder, places: Places) -> None:
        self._recorder, self._places = recorder, places

    def engine_may_begin(self) -> None:
        """Whether this process is to write is not known yet."""
        self._recorder.wait(elsewhere=False)

    def engine_begins(self) -> None:
        """The model may be in other processes."""
        self._recorder.wait(elsewhere=True)

    def model_begins(self) -> None:
        """It is here."""
        self._recorder.release()

    def step_begins(self) -> None:
        """A step of the engine is one of the trace. What came before the first, as loading, is step 0."""
        self._recorder.release()
        self._places.mark()

    def rows_are_known(self, rows: StepRows) -> None:
        """Which tokens of which requests the model is given in this step."""
        self._recorder.laid_out(
            Batch(
                step=self._recorder.step,
                requests=tuple(rows["requests"]),
                starts=tuple(rows["starts"]),
                tokens=tuple(rows["tokens"]),
                padding=rows["padding"],
            )
        )
