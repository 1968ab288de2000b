"""What vLLM does, seen from inside: a plugin that writes what the engine resolved, ran and sampled, and watchers.

vLLM loads the plugin (entry point group `vllm.general_plugins`) in the process that starts the engine, in the engine's
core and in every worker; a capture watches its own process. Methods of classes are wrapped, and what they take
and give is looked at; neither is changed, nothing is raised, and only what comes with Python is imported.
Read: vLLM 0.32.0, vllm/plugins/__init__.py and the modules of `_PATCHES`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Protocol

from moeparity.hooks import files, vllm_arguments, vllm_steps

_MARK = "_moeparity"


class Watcher(Protocol):
    """What is told of an engine, or of a part of one, in this process."""

    def engine_may_begin(self) -> None:
        """What engines are made with is imported here."""

    def engine_begins(self) -> None:
        """An engine begins here; its model may be in other processes."""

    def model_begins(self) -> None:
        """A model will be loaded here, and will run here."""

    def step_begins(self) -> None:
        """A step of the model begins."""

    def rows_are_known(self, rows: vllm_steps.StepRows) -> None:
        """The rows of a step are laid out, and the model will be given them next."""


WATCHERS: list[Watcher] = []
"""Those of this process; add one by `watch`."""


def register() -> None:
    """What vLLM calls: does nothing unless the environment names a folder (`MOEPARITY_SERVED`)."""
    try:
        if files.folder() is not None:
            _look()
    except Exception as error:  # noqa: BLE001  the engine starts all the same
        files.complain("register", error)


def watch(watcher: Watcher) -> None:
    """Tell a watcher of every engine in this process, be vLLM imported by now or later."""
    WATCHERS.append(watcher)
    _look()


def _look() -> None:
    """Wrap what is imported, and what will be."""
    if any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        return
    for name in list(_PATCHES):
        if name in sys.modules:
            _patch(sys.modules[name])
    sys.meta_path.insert(0, _AfterImport())


def _engine_begins(*_: Any, **__: Any) -> None:
    for watcher in WATCHERS:
        watcher.engine_begins()


def _model_begins(*_: Any, **__: Any) -> None:
    for watcher in WATCHERS:
        watcher.model_begins()


def _step_begins(_: Any, scheduled: Any, *__: Any, **___: Any) -> None:
    for watcher in WATCHERS if scheduled.total_num_scheduled_tokens else ():
        watcher.step_begins()


def _rows_are_known(writer: vllm_steps.Rows, rows: int) -> None:
    step = writer.end(rows)
    if step is not None:
        for watcher in WATCHERS:
            watcher.rows_are_known(step)


def _of_arguments(module: ModuleType) -> None:
    """Around the making of the configuration: what was stated before it, and what it is then."""
    stated: dict[int, dict[str, Any]] = {}
    for watcher in WATCHERS:
        watcher.engine_may_begin()

    def before(arguments: Any, *_: Any, **__: Any) -> None:
        stated[id(arguments)] = vllm_arguments.stated(arguments)

    def after(config: Any, arguments: Any, *_: Any, **__: Any) -> None:
        _engine_begins()
        vllm_arguments.write_resolved(stated.pop(id(arguments), {}), config)

    _wrap(module.EngineArgs, "create_engine_config", before=before, after=after)


def _of_scheduler(module: ModuleType) -> None:
    """A step is over when the scheduler is told what it gave."""
    if files.folder() is None:
        return

    def after(outputs: Any, scheduler: Any, scheduled: Any, ran: Any) -> None:
        vllm_steps.of(scheduler).see(scheduled, ran, outputs)

    def before_shutdown(scheduler: Any) -> None:
        vllm_steps.of(scheduler).close()

    def after_reset(done: Any, scheduler: Any, *_: Any, **__: Any) -> None:
        vllm_steps.of(scheduler).forget_prefixes()

    _wrap(module.Scheduler, "update_from_output", after=after)
    _wrap(module.Scheduler, "reset_prefix_cache", after=after_reset)
    _wrap(module.Scheduler, "shutdown", before=before_shutdown)


def _of_core(module: ModuleType) -> None:
    def after(_: Any, core: Any, weight_version: str) -> None:
        if files.folder() is not None:
            vllm_steps.of(core.scheduler).weights = str(weight_version)

    _wrap(module.EngineCore, "__init__", before=_engine_begins)
    _wrap(module.EngineCore, "set_weight_version", after=after)


def _of_first_runner(module: ModuleType) -> None:
    """The V1 model runner: its rows when they are laid out, how many pad them when that is decided."""

    def rows(_: Any, runner: Any, scheduled: Any, tokens: Any) -> None:
        batch = runner.input_batch
        starts = batch.num_computed_tokens_cpu[: batch.num_reqs].tolist()
        vllm_steps.rows_of(runner).begin(batch.req_ids[: batch.num_reqs], starts, tokens.tolist())

    def padding(decided: Any, runner: Any, *_: Any, **__: Any) -> None:
        _rows_are_known(vllm_steps.rows_of(runner), decided[1].num_tokens)

    _wrap(module.GPUModelRunner, "_prepare_inputs", after=rows)
    _wrap(module.GPUModelRunner, "_determine_batch_execution_and_padding", after=padding)
    _of_any_runner(module.GPUModelRunner)


def _of_second_runner(module: ModuleType) -> None:
    """The V2 model runner, which lays rows out when their padding is decided."""

    def rows(batch: Any, runner: Any, *_: Any, **__: Any) -> None:
        writer = vllm_steps.rows_of(runner)
        starts, tokens = batch.num_computed_tokens_np.tolist(), batch.num_scheduled_tokens.tolist()
        writer.begin(batch.req_ids, starts, tokens)
        _rows_are_known(writer, batch.num_tokens_after_padding)

    _wrap(module.GPUModelRunner, "prepare_inputs", after=rows)
    _of_any_runner(module.GPUModelRunner)


def _of_any_runner(runner: type) -> None:
    _wrap(runner, "__init__", before=_model_begins)
    _wrap(runner, "execute_model", before=_step_begins)
    _wrap(runner, "initialize_kv_cache", after=_loaded)


def _loaded(_: Any, runner: Any, cache_config: Any, *__: Any, **___: Any) -> None:
    vllm_arguments.write_kernels(runner, cache_config)


_PATCHES: dict[str, Callable[[ModuleType], None]] = {
    "vllm.engine.arg_utils": _of_arguments,
    "vllm.v1.core.sched.scheduler": _of_scheduler,
    "vllm.v1.engine.core": _of_core,
    "vllm.v1.worker.gpu_model_runner": _of_first_runner,
    "vllm.v1.worker.gpu.model_runner": _of_second_runner,
}
"""By module of vLLM, what is wrapped in it once it is imported; none is imported for it."""


def _patch(module: ModuleType) -> None:
    try:
        _PATCHES[module.__name__](module)
    except Exception as error:  # noqa: BLE001  of another release: it runs as ever
        files.complain(f"look at {module.__name__}", error)


class _AfterImport:
    """Lets modules be found as ever, and wraps those of `_PATCHES` once they were executed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """As the import system asks of whatever may find a module."""
        if name not in _PATCHES:
            return None
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(name, path, target)
            if spec is not None:
                return _followed(spec)
        return None


def _followed(spec: ModuleSpec) -> ModuleSpec:
    """The same, whose loader patches what it has executed."""
    if spec.loader is not None:
        execute = spec.loader.exec_module

        def execute_and_patch(module: ModuleType) -> None:
            execute(module)
            _patch(module)

        setattr(spec.loader, "exec_module", execute_and_patch)  # noqa: B010  only this spec's loader
    return spec


def _wrap(
    owner: type, name: str, before: Callable[..., None] | None = None, after: Callable[..., None] | None = None
) -> None:
    """Put functions before and after a method; `after` gets its result first. What they raise is noted."""
    original = getattr(owner, name)
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def wrapped(*arguments: Any, **keywords: Any) -> Any:
        if before is not None:
            _looked(before, name, *arguments, **keywords)
        result = original(*arguments, **keywords)
        if after is not None:
            _looked(after, name, result, *arguments, **keywords)
        return result

    setattr(wrapped, _MARK, True)
    setattr(owner, name, wrapped)


def _looked(look: Callable[..., None], name: str, *arguments: Any, **keywords: Any) -> None:
    try:
        look(*arguments, **keywords)
    except Exception as error:  # noqa: BLE001  whatever it is, it is not the engine's
        files.complain(name, error)
