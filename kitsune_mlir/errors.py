"""The errors that kitsune-mlir raises: every one is a `KitsuneError` and reads as a sentence.

Nothing here imports the compiler or torch, so the runtime can raise these too.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "ArgumentError",
    "AssemblyTimeout",
    "BrokenOffer",
    "BusyError",
    "CompileError",
    "ConflictError",
    "DeadlineError",
    "DynamicShapeError",
    "FrontendError",
    "KitsuneError",
    "PackageError",
    "PerformanceWarning",
    "TargetError",
    "UnsupportedError",
]


class KitsuneError(Exception):
    """Base of all errors that this package raises on purpose."""


class FrontendError(KitsuneError):
    """A model could not be imported.

    Attributes:
        operator: the operator that could not be imported, such as `aten.foo.default`, if it is known.
        location: `file:line` of the model's source that called it, if it is known.
    """

    def __init__(self, message: str, *, operator: str | None = None, location: str | None = None):
        self.operator = operator
        self.location = location
        super().__init__(_located(location, message))


class DynamicShapeError(FrontendError):
    """A shape, or a Python number, depends on data or on a dimension declared dynamic.

    Attributes:
        value: name of the value in the exported graph whose shape is not a constant.
    """

    def __init__(self, message: str, *, value: str, operator: str | None = None, location: str | None = None):
        self.value = value
        super().__init__(message, operator=operator, location=location)


class UnsupportedError(KitsuneError):
    """The compiler met something valid that it does not support.

    Args:
        op: the operation, such as `linalg.conv_2d_nchw_fchw`.
        limit: what is supported, in words: "at most 8 dimensions".
        value: what was found: 9.
        location: source position of the operation, if it is known.
    """

    def __init__(self, op: str, limit: str, value: object = None, location: str | None = None):
        self.op = op
        self.limit = limit
        self.value = value
        self.location = location
        found = "" if value is None else f" (found {value})"
        super().__init__(_located(location, f"'{op}' is not supported here: {limit}{found}"))


class ArgumentError(KitsuneError, ValueError):
    """A call got an argument of the wrong count, structure, shape, dtype, device or alignment."""


class ConflictError(ArgumentError):
    """Two requests of one launch use memory that one of them writes: they have an order, and a launch has none."""


class BusyError(KitsuneError):
    """An engine that serves programs has as many requests waiting as it may, or is closed: it takes no more."""


class DeadlineError(KitsuneError, TimeoutError):
    """The time that a request had was over before it could be started."""


class PackageError(KitsuneError):
    """A `.kit` file is truncated, altered, of another version, or no `.kit` file at all."""


class CompileError(KitsuneError):
    """A pass or a code generator failed.

    Attributes:
        reproducer: path of a file that `kitsune-opt` can replay, or None.
    """

    def __init__(self, message: str, *, reproducer: str | None = None):
        self.reproducer = reproducer
        super().__init__(message if reproducer is None else f"{message}\nreproducer: {reproducer}")


class AssemblyTimeout(CompileError):
    """A kernel's code took ptxas longer than it may (`Options.ptxas_seconds`).

    Attributes:
        kernel: its name.
        limit: seconds that it had.
        seconds: those that were spent until it was ended.
        stages: the names of the stages that the kernel holds, as far as they are known.
        before: lines on the plans that were given up before this one.
    """

    def __init__(self, kernel: str, limit: float, seconds: float, stages: tuple[str, ...] = (), before: str = ""):
        self.kernel, self.limit, self.seconds, self.stages = kernel, limit, seconds, stages
        held = f" (stages {', '.join(stages)})" if stages else ""
        super().__init__(
            f"kernel '{kernel}'{held} was not assembled in {seconds:.1f} s; option 'ptxas_seconds' allows {limit:g} s{before}"
        )


class BrokenOffer(KitsuneError):
    """An engine offered to do a stage, and declined the tasks that the stage became.

    Attributes:
        stages: the name of the stage, which is one.
        engine: whose offer it was.
        reason: why it declined.
        others: the same of other stages of the program.
    """

    def __init__(self, stage: str, engine: str, reason: str, others: Sequence[BrokenOffer] = ()):
        self.stages, self.engine, self.reason, self.others = (stage,), engine, reason, tuple(others)
        super().__init__(f"engine '{engine}' offered to do stage '{stage}', and declined: {reason}")


class TargetError(KitsuneError):
    """A target does not exist, is not usable on this machine, or lacks a component (named in the message)."""


class PerformanceWarning(UserWarning):
    """A compiled program has stages that will be far slower than the chip needs to be; the message names them and says why."""


def _located(location: str | None, message: str) -> str:
    return message if location is None else f"{location}: {message}"
