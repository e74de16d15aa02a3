"""Running an assembler, for no longer than it may take.

`ptxas` is a program: it and whatever it starts are ended when its time is over. nvJitLink cannot be interrupted, so where time
is limited a Python of its own calls it: this file, run as a script, which therefore imports nothing of the project.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

__all__ = ["Children", "TooSlow", "find_ptxas", "link", "run"]

R = TypeVar("R")


class TooSlow(Exception):
    """A program had not ended when its time was over; it is ended now."""


class Children:
    """The programs that some threads run, so that another one can end them."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()
        self._ended = False

    def owning(self, work: Callable[[], R]) -> R:
        """Do `work`: what this thread runs meanwhile is one of these."""
        before = _children.set(self)
        try:
            return work()
        finally:
            _children.reset(before)

    @contextlib.contextmanager
    def running(self, process: subprocess.Popen[str]) -> Iterator[None]:
        """Says that a program runs."""
        with self._lock:
            self._running.add(process)
            if self._ended:
                _kill(process)
        try:
            yield
        finally:
            with self._lock:
                self._running.discard(process)

    def kill(self) -> None:
        """End all of them, and those that begin from now on."""
        with self._lock:
            self._ended = True
            for process in self._running:
                _kill(process)


_children: contextvars.ContextVar[Children | None] = contextvars.ContextVar("children", default=None)


def _kill(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def find_ptxas() -> Path | None:
    """Path of the `ptxas` program: from the package `nvidia-cuda-nvcc`, a CUDA toolkit, or the search path."""
    try:
        from cuda.pathfinder import find_nvidia_binary_utility
    except ImportError:
        found = None
    else:
        try:
            found = find_nvidia_binary_utility("ptxas")
        except RuntimeError:  # an older pathfinder does not know it
            found = None
    found = found or shutil.which("ptxas")
    return Path(found) if found else None


def run(command: Sequence[str], seconds: float | None) -> tuple[int, str]:
    """Run a program; its exit status, and what it wrote.

    Args:
        seconds: wall time after which it and all that it started is killed; None is no limit.

    Raises:
        TooSlow: it took longer.
    """
    # A session of its own: the group can be killed as one.
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True
    ) as process:
        owner = _children.get()
        try:
            with owner.running(process) if owner is not None else contextlib.nullcontext():
                output, _ = process.communicate(timeout=seconds)
        except BaseException as error:  # an interrupt from the keyboard does not reach another session
            _kill(process)
            if isinstance(error, subprocess.TimeoutExpired):
                raise TooSlow from None
            raise
        return process.returncode, output


def link(source: Path, target: Path, options: Sequence[str], seconds: float | None) -> tuple[bool, str]:
    """Assemble a file with nvJitLink; whether that succeeded, and its report.

    Args:
        seconds: as in `run`; None calls it in this process.

    Raises:
        ImportError: nvJitLink is not installed.
        TooSlow: it took longer.
    """
    if seconds is None:
        return _link(source, target, options)
    import cuda.bindings.nvjitlink  # noqa: F401  the error is this process's

    # -P: this folder's modules are not to be found by their bare names.
    status, log = run([sys.executable, "-P", __file__, str(source), str(target), *options], seconds)
    return status == 0, log


def _link(source: Path, target: Path, options: Sequence[str]) -> tuple[bool, str]:
    from cuda.bindings import nvjitlink

    text = source.read_bytes()
    options = [*options, "-verbose"]
    handle = nvjitlink.create(len(options), options)
    try:
        try:
            nvjitlink.add_data(handle, nvjitlink.InputType.PTX, text, len(text), source.name)
            nvjitlink.complete(handle)
        except nvjitlink.nvJitLinkError as error:
            return False, _read(nvjitlink.get_error_log_size, nvjitlink.get_error_log, handle) or str(error)
        data = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, data)
        target.write_bytes(data)
        return True, _read(nvjitlink.get_info_log_size, nvjitlink.get_info_log, handle)
    finally:
        nvjitlink.destroy(handle)


def _read(size, get, handle: int) -> str:
    length = size(handle)
    if length <= 0:
        return ""
    buffer = bytearray(length)
    get(handle, buffer)
    return buffer.rstrip(b"\0").decode(errors="replace").strip()


if __name__ == "__main__":
    done, report = _link(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
    print(report)
    raise SystemExit(not done)
