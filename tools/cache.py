"""`kitsune cache`: what compiling has left on disk."""

from __future__ import annotations

import time

import click

from kitsune_mlir.cache.store import KINDS, Store
from kitsune_mlir.runtime.explain import size

__all__ = ["cache"]

MEANING = {
    "programs": "whole programs",
    "graphs": "graphs of Dynamo",
    "cubins": "assembled kernels",
    "choices": "ours or PyTorch",
    "sources": "digests of ours",
    "tuning": "measured stages",
}


@click.group(invoke_without_command=True)
@click.option("--folder", type=click.Path(file_okay=False), help="Another folder than KITSUNE_CACHE_DIR or the user's own.")
@click.pass_context
def cache(context: click.Context, folder: str | None) -> None:
    """Show what compiling has left on disk: the folder, its size, its entries by kind. `cache clear` removes them."""
    context.obj = store = Store(folder)
    if context.invoked_subcommand is None:
        click.echo(described(store))


@cache.command()
@click.option("--kind", type=click.Choice(KINDS), help="Only these; measurements take a device to make again.")
@click.pass_obj
def clear(store: Store, kind: str | None) -> None:
    """Remove what is kept."""
    count = store.clear(kind)
    click.echo(f"{store.folder}: {count} {'entry' if count == 1 else 'entries'} removed")


def described(store: Store) -> str:
    """The folder, and a line a kind."""
    lines = [f"{store.folder}: at most {size(store.limit)} of programs and cubins (KITSUNE_CACHE_MB)"]
    found = store.entries()
    for kind in KINDS:
        entries = [entry for entry in found if entry.kind == kind]
        used = f", last used {_ago(max(entry.used for entry in entries))}" if entries else ""
        many = size(sum(entry.bytes for entry in entries))
        lines.append(f"  {kind:9} {len(entries):6} {MEANING[kind]:18} {many:>8}{used}")
    return "\n".join(lines)


def _ago(when: float) -> str:
    seconds = max(0.0, time.time() - when)
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.0f} seconds ago"
