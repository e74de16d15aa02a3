"""What readers of IR raise where it is not of the form that they look for."""


class MatchFailure(Exception):
    """An operation, or a task's body, is not what was looked for; the text is the reason (MLIR: `notifyMatchFailure`)."""


def require(condition: bool, reason: str) -> None:
    """Raise `MatchFailure` unless the condition holds."""
    if not condition:
        raise MatchFailure(reason)
