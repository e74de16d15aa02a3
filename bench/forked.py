"""A case in a process of its own, forked before the GPU is touched, so that it starts at once and a hang costs only itself."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

__all__ = ["answer_of"]


def answer_of(work: Callable[[], dict[str, Any]], case: str, seconds: float) -> dict[str, Any]:
    """What `work` returns in a forked process, or {"case", "problem"} where it raises, ends, or takes longer than `seconds`."""
    context = multiprocessing.get_context("fork")
    reader, writer = context.Pipe(duplex=False)

    def run() -> None:
        try:
            writer.send(work())
        except BaseException as error:  # whatever it is, the other cases go on
            writer.send({"case": case, "problem": f"{type(error).__name__}: {error}"})

    child = context.Process(target=run)
    child.start()
    writer.close()
    try:
        if reader.poll(seconds):
            return reader.recv()
        return {"case": case, "problem": f"no answer in {seconds} s"}
    except EOFError:
        child.join()
        return {"case": case, "problem": f"its process ended with status {child.exitcode}"}
    finally:
        child.kill()
        child.join()
        reader.close()
