"""`moeparity forward`: runs one variant and writes its values to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moeparity.cli.options import DecodeFrom, Device, MemoryLimit, ScheduleFile, scheduling
from moeparity.errors import Where


def forward(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint folder: config.json and safetensors files.")],
    tokens: Annotated[Path, typer.Option(help="A safetensors file with input_ids, or a *.jsonl file.")],
    out: Annotated[Path, typer.Option(help="The safetensors file to write.")],
    profile: Annotated[str, typer.Option(help="A shipped profile, or a path to one.")] = "hf-eager",
    save: Annotated[
        list[str] | None, typer.Option(help="Also write the values of these nodes; may be repeated.")
    ] = None,
    micro_batch: Annotated[int | None, typer.Option(min=1, help="Sequences computed together; all by default.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="For text: bytes, checkpoint, or a tokenizer.json.")] = None,
    dtype: Annotated[str | None, typer.Option(help="bf16, fp16, fp32 or fp64; the checkpoint's by default.")] = None,
    decode_from: DecodeFrom = None,
    schedule: ScheduleFile = None,
    memory_limit: MemoryLimit = None,
    device: Device = "auto",
) -> None:
    """Run one variant, write its logits, routes and what is asked for."""
    from moeparity.cli.outputs import outputs
    from moeparity.cli.signals import ignore_signals
    from moeparity.engine.forward import forward as run
    from moeparity.inputs.tokens import read_tokens
    from moeparity.output.writing import write_tensors

    place, steps = Where(Path("--tokenizer")), scheduling(decode_from, schedule, micro_batch)
    with outputs({"--out": out}, unprinted=("--out",)) as files:
        token_set = read_tokens(tokens, checkpoint=checkpoint, tokenizer=tokenizer, named_at=place, scored=False)
        with files.progress() as progress:
            tensors = run(
                checkpoint,
                token_set.input_ids,
                attention_mask=token_set.attention_mask,
                images=None if token_set.images is None else token_set.images.tensors(),
                profile=profile,
                micro_batch=micro_batch if steps is None else None,
                schedule=steps,
                dtype=dtype,
                device=device,
                save=save or (),
                memory_limit=memory_limit,
                progress=progress,
            )
        files.file("--out", lambda path: write_tensors(path, tensors))
    ignore_signals()
    files.print(f"{out}: {len(tensors)} tensors, logits {list(tensors['logits'].shape)}")
