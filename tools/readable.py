"""Commands whose errors are sentences."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import click

from kitsune_mlir.errors import KitsuneError, PerformanceWarning

__all__ = ["readable"]


def readable(command: Callable[..., Any]) -> Callable[..., Any]:
    """Errors as one sentence and exit status 1; with --debug the traceback before it."""

    @wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            with _plain_warnings():
                return command(*args, **kwargs)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            raise click.Abort() from None
        except Exception as error:
            if click.get_current_context().find_root().params.get("debug"):
                traceback.print_exc()
            kind = "" if isinstance(error, (KitsuneError, OSError)) else f"internal error: {type(error).__name__}: "
            click.echo(f"kitsune: {kind}{_sentence(error)}", err=True)
            if kind:
                click.echo("kitsune: 'kitsune --debug ...' shows where", err=True)
            raise SystemExit(1) from error

    return wrapped


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """What the compiler warns of, as text: the line of Python that called it says nothing to who called a command."""
    show = warnings.showwarning

    def shown(message: Any, category: type[Warning], *place: Any) -> None:
        if issubclass(category, PerformanceWarning):
            click.echo(f"warning: {message}", err=True)
        else:
            show(message, category, *place)

    warnings.showwarning = shown
    try:
        yield
    finally:
        warnings.showwarning = show


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__
