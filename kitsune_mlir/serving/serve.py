"""`serve`: an engine for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kitsune_mlir.errors import ArgumentError
from kitsune_mlir.runtime.program import Program
from kitsune_mlir.serving.engine import Engine, Source
from kitsune_mlir.serving.families import families_of

__all__ = ["serve"]


def serve(
    models: Mapping[str, Program] | Sequence[Program],
    *,
    limit: int = 32,
    capacity: int = 1024,
    measure: bool = True,
    source: Source | None = None,
) -> Engine:
    """Serve programs: an engine that takes requests from any threads.

        with kitsune_mlir.serve({"a": program, "b": program.with_weights(weights)}) as engine:
            future = engine.submit("a", (x,), deadline=0.005)
            y = future.result()

    Args:
        models: programs by name; those of a sequence are called "0", "1", ... Programs of one code share launches: made by
            `Program.with_weights`, or compiled of the same model.
        limit: most requests of a launch (of what a program was compiled for: option `requests` on a GPU).
        capacity: most requests that wait at a time.
        measure: run each code with random inputs now, to know what launches of so many requests take; otherwise it is learnt.
        source: `source(engine, idle)` is called by the thread that launches, between launches, and hands in what has come: no
            other thread has to run for that, or waits for the interpreter's lock. `idle`: nothing waits or is under way,
            so it may wait for something to come. It gives whether it wants to be asked again.

    Raises:
        ArgumentError: a limit is not above 0, or there are no models.
        TargetError: a program cannot run on this machine.
    """
    named = models if isinstance(models, Mapping) else {str(number): program for number, program in enumerate(models)}
    if not named:
        raise ArgumentError("there are no models to serve")
    for name, value in (("limit", limit), ("capacity", capacity)):
        if type(value) is not int or value < 1:
            raise ArgumentError(f"the {name} of an engine is a whole number above 0, not {value!r}")
    return Engine(families_of(named, limit, measure), capacity, source=source)
