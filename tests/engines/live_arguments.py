"""Engines' own argument parsers in a process of their own: a line of JSON asks, a line of JSON answers.

`python -m tests.engines.live_arguments vllm|sglang|megatron|slime|miles`. Parsers, actions and configurations are the
engines' own. vLLM has no build here, so its compiled modules are empty ones and the platform is set to CUDA, whose
defaults are asked for; slime's and miles's loggers, ray and router, of which they take a class of arguments, are empty
ones too, and
Megatron-LM's `typing.override` is supplied where Python is older. Nothing of them decides how a word is read.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

_COMPILED = ("vllm._C_stable_libtorch", "vllm._C", "vllm._moe_C_stable_libtorch")
Parse = Callable[[Sequence[str]], Mapping[str, Any]]


def _vllm() -> tuple[argparse.ArgumentParser, Parse]:
    """`vllm serve`, as vllm/entrypoints/cli puts it together: the words begin with `serve`, or it is the module."""
    sys.modules.update({name: types.ModuleType(name) for name in _COMPILED})
    import vllm.platforms
    from vllm.platforms.cuda import NonNvmlCudaPlatform

    vllm.platforms._current_platform = NonNvmlCudaPlatform()
    from vllm.entrypoints.common.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    program = FlexibleArgumentParser(prog="vllm")
    serve = make_arg_parser(program.add_subparsers(dest="subparser").add_parser("serve"))
    module = make_arg_parser(FlexibleArgumentParser(prog="vllm.entrypoints.openai.api_server"))

    def parse(words: Sequence[str]) -> Mapping[str, Any]:
        return vars((program if words[:1] == ["serve"] else module).parse_args(list(words)))

    return serve, parse


def _sglang() -> tuple[argparse.ArgumentParser, Parse]:
    """`sglang serve`, or `sglang.launch_server` without that word."""
    from sglang.cli.serve import _normalize_positional_model_path
    from sglang.srt.server_args import ServerArgs, prepare_server_args

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)

    def parse(words: Sequence[str]) -> Mapping[str, Any]:
        rest = list(words)
        if rest[:1] == ["serve"]:
            rest, _ = _normalize_positional_model_path(rest[1:])
        # Without a file, preparing is these two steps and a logger; it builds the parser anew each time.
        from_file = "--config" in rest
        record = prepare_server_args(rest) if from_file else ServerArgs.from_cli_args(parser.parse_args(rest))
        return {name: getattr(record, name) for name in record.__struct_fields__}

    return parser, parse


def _megatron() -> tuple[argparse.ArgumentParser, Parse]:
    """`pretrain_gpt.py`, as parse_args of megatron/training/arguments.py puts its parser together."""
    if not hasattr(typing, "override"):
        typing.override = lambda function: function  # type: ignore[attr-defined]
    from megatron.training.arguments import add_megatron_arguments

    parser = add_megatron_arguments(argparse.ArgumentParser(description="Megatron-LM Arguments", allow_abbrev=False))
    return parser, lambda words: vars(parser.parse_args(list(words)))


def _slime() -> tuple[argparse.ArgumentParser, Parse]:
    """`train.py`: what slime.utils.arguments.parse_args merges of its three parsers, and what it then makes of it.

    Left out is what asks for files, ray or GPUs. Megatron-LM's own validation is a step of slime's, which is run
    without it.
    """
    parser, _ = _megatron()
    _without_router()
    from megatron.training import arguments as of_training
    from slime.backends.megatron_utils import arguments as of_megatron
    from slime.backends.sglang_utils import arguments as of_sglang
    from slime.utils import arguments as of_slime

    of_slime.get_slime_extra_args_provider()(parser)
    servers = argparse.ArgumentParser(add_help=False)
    of_sglang.add_sglang_arguments(servers)
    # Each is put together once, and not for every line.
    of_training.add_megatron_arguments = lambda _: parser
    of_sglang.add_sglang_arguments = lambda anew: anew.__dict__.update(servers.__dict__)
    of_megatron._megatron_validate_args = lambda args: args

    def parse(words: Sequence[str]) -> Mapping[str, Any]:
        sys.argv = ["train.py", *words]
        before = of_slime._pre_parse_mode()
        of_server = of_sglang.sglang_parse_args()
        args = of_training.parse_args(ignore_unknown_args=True)
        for name, value in (*vars(before).items(), *vars(of_server).items()):
            setattr(args, name, value)
        values = dict(vars(args))
        of_megatron.validate_args(args)
        of_sglang.validate_args(args)
        return {**values, "made": {"dispatcher": args.moe_token_dispatcher_type, "tensor": args.sglang_tp_size}}

    joint = argparse.ArgumentParser(add_help=False)
    joint._actions = [*parser._actions, *servers._actions]
    return joint, parse


def _without_router() -> None:
    router = types.ModuleType("sglang_router.launch_router")
    router.RouterArgs = type("RouterArgs", (), {"add_cli_args": staticmethod(lambda *_, **__: None)})  # type: ignore[attr-defined]
    empty = {name: types.ModuleType(name) for name in ("wandb", "ray", "sglang_router")}
    sys.modules.update({**empty, "sglang_router.launch_router": router})


def _miles() -> tuple[argparse.ArgumentParser, Parse]:
    """`train.py`: miles.utils.arguments.parse_args with Megatron-LM as its backend, without what asks for the model."""
    parser, _ = _megatron()
    _without_router()
    for name in ("dashboard.args", "rollout.checkpoint_eval", "utils.object_store", "utils.ft_utils.health_checker",
                 "utils.logging_utils", "utils.misc", "utils.hf_config", "utils.http_utils",
                 "utils.chat_template_utils.tito_tokenizer", "utils.tracking_utils.ci_history"):  # fmt: skip
        sys.modules[f"miles.{name}"] = _Empty(f"miles.{name}")
    from miles.backends.sglang_utils import arguments as of_sglang
    from miles.utils import arguments as of_miles

    of_miles.get_miles_extra_args_provider()(parser)

    def parse(words: Sequence[str]) -> Mapping[str, Any]:
        args = parser.parse_args(list(words))
        values = dict(vars(args))
        of_sglang.validate_args(args)
        return {**values, "made": {"tensor": args.sglang_tp_size,
                                   "deterministic": args.sglang_enable_deterministic_inference}}  # fmt: skip

    return parser, parse


class _Empty(types.ModuleType):
    """A module in place of one, in which every name is a class without arguments of its own."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing if name[0].isupper() else lambda *_, **__: None


class _Members(type):
    """Of a class that has no members, and whose members all are its value."""

    def __iter__(cls) -> Iterator[Any]:
        return iter(())

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return types.SimpleNamespace(value=name.lower())


class _Nothing(metaclass=_Members):
    """A class that adds no arguments."""

    add_cli_args = add_arguments = staticmethod(lambda *_, **__: None)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(inner) for inner in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _action(action: argparse.Action) -> dict[str, Any]:
    choices = None if action.choices is None else [str(choice) for choice in action.choices]
    made_by = getattr(action.type, "__name__", str(action.type))
    return {"names": action.option_strings, "dest": action.dest, "words": action.nargs, "choices": choices,
            "type": made_by, "class": type(action).__name__, "default": _plain(action.default)}  # fmt: skip


def main() -> None:
    # Who refuses a line prints how all options are used first, which takes longer than reading it, and nobody reads it.
    argparse.ArgumentParser.format_usage = lambda _: ""  # type: ignore[assignment, method-assign]
    answers, sys.stdout = sys.stdout, sys.stderr
    parsers = {"vllm": _vllm, "sglang": _sglang, "megatron": _megatron, "slime": _slime, "miles": _miles}
    parser, parse = parsers[sys.argv[1]]()
    print(json.dumps([_action(action) for action in parser._actions]), file=answers, flush=True)
    for line in sys.stdin:
        try:
            answer = {"values": _plain(parse(json.loads(line)))}
        except (SystemExit, Exception) as error:  # noqa: BLE001  (whatever it refuses a line with)
            answer = {"refused": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer, default=str), file=answers, flush=True)


if __name__ == "__main__":
    main()
