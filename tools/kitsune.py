"""`kitsune`: compile a model to a `.kit` file, run it, explain it, and say what this machine can do."""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console

import kitsune_mlir
from kitsune_mlir.errors import ArgumentError, KitsuneError
from kitsune_mlir.machine.target import TARGETS
from kitsune_mlir.runtime.explain import accesses_text
from kitsune_mlir.runtime.named_inputs import call_of
from kitsune_mlir.sized.signature import SizedSignature

from .cache import cache
from .progress import Progress
from .readable import readable
from .serving import load, serve

err = Console(stderr=True, soft_wrap=True)
TARGET_NAMES = ["auto", *TARGETS]
LEVELS = ["linalg", "stages", "tiles", "gpu", "llvm", "ptx"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(kitsune_mlir.__version__, prog_name="kitsune")
@click.option("--debug", is_flag=True, help="Show Python tracebacks.")
def main(debug: bool) -> None:
    """Compile PyTorch models into a few persistent dataflow kernels."""


main.add_command(cache)
main.add_command(serve)
main.add_command(load)


target_option = click.option(
    "--target", type=click.Choice(TARGET_NAMES), default="auto", show_default=True, help="Machine to compile for."
)
args_option = click.option(
    "--args", "args_text", metavar="SHAPES", help="Example arguments, such as 'f32[4,64] i64[4]', where MODEL gives none."
)


machine_option = click.option(
    "--machine", default="H200", show_default=True, help="Machine to predict for: H200, H100, A100, or a .toml or .json file."
)


@main.command()
@click.argument("model")
@click.option("-o", "--output", required=True, type=click.Path(dir_okay=False), help="The .kit file to write.")
@click.option("--no-weights", is_flag=True, help="Leave parameters and buffers out of the file.")
@click.option("--remarks", is_flag=True, help="Print what the passes have to say about their choices.")
@click.option("--tune", is_flag=True, help="Measure tile sizes on this machine (once: results are kept on disk).")
@target_option
@args_option
@readable
def compile(model: str, output: str, no_weights: bool, remarks: bool, tune: bool, target: str, args_text: str | None) -> None:
    """Compile MODEL (path/to/file.py:function, or m.pt2, .onnx, .mlir) and write a .kit file.

    The function takes nothing and returns (model, args), or a model where --args is given.
    """
    require_folder(output)  # before minutes of work
    program = compiled(model, args_text, target, remarks, tune)
    with Progress(err).running("writing"):
        program.save(output, weights=not no_weights)
    size = Path(output).stat().st_size
    took = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in program.seconds.items())
    click.echo(f"{output}: {size / 1e6:.1f} MB for {program.target} ({took})")


@main.command()
@click.argument("package", type=click.Path())
@click.option("--random", "use_random", is_flag=True, help="Run on random inputs (integers are 0 or 1).")
@click.option("--inputs", type=click.Path(dir_okay=False), help="A .safetensors file with one tensor for each input, by name.")
@click.option("--outputs", type=click.Path(dir_okay=False), help="Write the outputs to this .safetensors file (output0, ...).")
@click.option("--repeat", default=1, show_default=True, type=click.IntRange(1), help="Call it this many times and time it.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0, (1 << 64) - 1), help="Seed of the random inputs.")
@readable
def run(package: str, use_random: bool, inputs: str | None, outputs: str | None, repeat: int, seed: int) -> None:
    """Run a .kit file."""
    if outputs:
        require_folder(outputs)
    program = loaded(package)
    if use_random == (inputs is not None):
        named = {each.symbol: each.name for each in getattr(program.signature, "ranges", ())}

        def sizes(shape: tuple[Any, ...]) -> str:
            return ", ".join(str(named.get(n, n) if isinstance(n, str) else n) for n in shape)

        names = ", ".join(f"{i.name} {i.dtype}[{sizes(i.shape)}]" for i in program.signature.inputs)
        raise KitsuneError(f"pass --random, or --inputs FILE.safetensors with: {names}")
    import torch
    from torch.utils import _pytree as pytree

    torch.manual_seed(seed)
    tensors = random_inputs(program) if use_random else read_inputs(program, inputs or "")
    args, kwargs = call_of(program.signature, tensors, inputs or "the call")
    times, result = [], None
    with Progress(err).running("running"):
        for _ in range(repeat):
            start = time.perf_counter()
            result = program(*args, **kwargs)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
    leaves = pytree.tree_leaves(result)
    for number, leaf in enumerate(leaves):
        click.echo(f"output {number}: {described(leaf)}")
    if repeat > 1:
        best, middle = min(times), statistics.median(times)
        click.echo(f"{repeat} calls: fastest {1e3 * best:.3f} ms, median {1e3 * middle:.3f} ms")
    if outputs:
        from safetensors.torch import save_file

        kept = {f"output{n}": t.contiguous().clone() for n, t in enumerate(leaves) if isinstance(t, torch.Tensor)}
        save_file(kept, outputs)


@main.command()
@click.argument("model")
@click.option("--ir", "level", type=click.Choice(LEVELS), help="Print the program's text at a level instead.")
@click.option("--accesses", is_flag=True, help="Print which bytes of which tensors a run reads and writes instead.")
@click.option("--remarks", is_flag=True, help="Print what the passes have to say about their choices.")
@click.option("--timeline", type=click.Path(dir_okay=False), help="Write when each block does what to this HTML page.")
@click.option("--torch-compile", is_flag=True, help="Say what torch.compile makes of it: graphs, programs, what PyTorch runs.")
@click.option("--backward", is_flag=True, help="With --torch-compile: compute gradients too.")
@machine_option
@target_option
@args_option
@readable
def explain(
    model: str,
    level: str | None,
    accesses: bool,
    remarks: bool,
    timeline: str | None,
    torch_compile: bool,
    backward: bool,
    machine: str,
    target: str,
    args_text: str | None,
) -> None:
    """Say what MODEL (m.kit, path/to/file.py:function, m.pt2, .onnx or .mlir) becomes: stages, buffers, launches, traffic.

    With --torch-compile, the model is called once through torch.compile, where its tensors are; MODEL may then name any
    function that takes what --args gives, or one that returns a function and its arguments.

    With --timeline, a page shows what each multiprocessor does when: as predicted for a machine and, where the program can run
    and was compiled with timestamps (a model that is compiled here is), as measured.
    """
    if torch_compile or backward:
        if level or accesses or remarks or timeline or target != "auto" or not torch_compile:
            raise click.UsageError("--torch-compile goes with --args and --backward alone, and --backward with it")
        click.echo(explained_graphs(model, args_text, backward))
        return
    options = {"timestamps": True} if timeline else {}
    program = loaded(model) if model.endswith(".kit") else compiled(model, args_text, target, remarks, **options)
    if timeline:
        require_one_size(program, "a timeline")
    text = accesses_text(program.accesses) if accesses else program.ir(level) if level else program.explain()
    click.echo(text)
    if timeline:
        from .timelines import write_timelines

        with Progress(err).running("drawing the timeline"):
            click.echo(write_timelines(program, machine, timeline, arguments_of=random_arguments))


@main.command()
@click.argument("model")
@machine_option
@click.option("--cold", is_flag=True, help="Nothing is in L2 before (else the program has just run).")
@click.option("--timeline", type=click.Path(dir_okay=False), help="Write the run to this HTML page.")
@click.option("--trace", type=click.Path(dir_okay=False), help="Write the run to this JSON file, for ui.perfetto.dev.")
@args_option
@readable
def simulate(model: str, machine: str, cold: bool, timeline: str | None, trace: str | None, args_text: str | None) -> None:
    """Predict the time of MODEL (m.kit, path/to/file.py:function, m.pt2, .onnx, .mlir) on a described machine, without a GPU.

    Prints a line a stage: when its first tile begins and its last one ends (microseconds), which share of all blocks' time it
    works and waits, and its traffic.
    """
    program = loaded(model) if model.endswith(".kit") else compiled(model, args_text, "sm_90a", False)
    require_one_size(program, "a simulation")
    with Progress(err).running("simulating"):
        from .timelines import simulated

        found = simulated(program, machine, cold)
    click.echo(found.table())
    if timeline or trace:
        from .timelines import write_page, write_trace

        if timeline:
            write_page(timeline, model, [found.panel()], found.table())
        if trace:
            write_trace(trace, [found.panel()])


@main.command()
@readable
def doctor() -> None:
    """Say what is installed, which targets are usable, what is missing and how to get it.

    The exit status is 0 when at least one target is usable.
    """
    from .doctor import report

    with Progress(err).running("looking"):
        text, usable = report()
    click.echo(text)
    if not usable:
        raise SystemExit(1)


def compiled(spec: str, args_text: str | None, target: str, remarks: bool, tune: bool = False, timestamps: bool = False) -> Any:
    """The program of a user's model, with progress by phase."""
    with Progress(err).running("loading the model") as progress:
        from .user_code import load_model

        model, args, kwargs = load_model(spec, args_text)
        options = kitsune_mlir.Options(
            on_phase=lambda name: progress.phase(f"compiling: {name}"),
            on_remark=(lambda r: click.echo(r.render(), err=True)) if remarks else None,
            tune=tune,
            timestamps=timestamps,
        )
        return kitsune_mlir.compile(model, args, kwargs, target=target, options=options)


def explained_graphs(spec: str, args_text: str | None, backward: bool) -> str:
    """What torch.compile makes of a user's model."""
    with Progress(err).running("calling the model"):
        import torch

        from .user_code import load_model

        model, args, kwargs = load_model(spec, args_text, functions=True)
        if isinstance(model, str):
            raise KitsuneError(f"--torch-compile takes a function or a torch.nn.Module, not the file {spec}")
        with torch.set_grad_enabled(backward):
            return str(kitsune_mlir.explain(model, args, kwargs, backward=backward))


def require_folder(path: str) -> None:
    """KitsuneError where there is no folder to write a file to."""
    if not Path(path).absolute().parent.is_dir():
        raise KitsuneError(f"no folder '{Path(path).parent}' to write {Path(path).name} to")


def loaded(path: str) -> Any:
    """The program in a `.kit` file."""
    with Progress(err).running("loading"):
        return kitsune_mlir.load(path)


def require_one_size(program: Any, what: str) -> None:
    """KitsuneError of a package for sizes that change."""
    if isinstance(program.signature, SizedSignature):
        ranges = ", ".join(f"{each.name} {each}" for each in program.signature.ranges)
        raise KitsuneError(f"{what} is of a program for one size, and the package is for {ranges}")


def random_inputs(program: Any) -> dict[str, Any]:
    """A random tensor for each input, on the program's device; of sizes that change, the largest."""
    from .user_code import random_tensor

    signature = program.signature
    shapes = signature.largest() if isinstance(signature, SizedSignature) else {i.name: i.shape for i in signature.inputs}
    return {i.name: random_tensor(shapes[i.name], i.dtype).to(program.device) for i in signature.inputs}


def random_arguments(program: Any) -> tuple[list[Any], dict[str, Any]]:
    """Random arguments of a call."""
    return call_of(program.signature, random_inputs(program))


def read_inputs(program: Any, path: str) -> dict[str, Any]:
    """The inputs from a safetensors file."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path, device=program.device)
    except SafetensorError as error:
        raise ArgumentError(f"{path}: not a safetensors file ({error})") from error
    return tensors


def described(value: Any) -> str:
    """A tensor's dtype, shape and range, or another value as it is."""
    import torch

    if not isinstance(value, torch.Tensor):
        return repr(value)
    text = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if value.numel() == 0 or value.is_complex():
        return text
    wide = value.double()
    text += f"  min {wide.min().item():.6g}  max {wide.max().item():.6g}  mean {wide.mean().item():.6g}"
    bad = int((~torch.isfinite(wide)).sum())
    return text + (f"  ({bad} not finite)" if bad else "")


if __name__ == "__main__":
    sys.exit(main())
