"""A proof that an epoch ends, and orders its instances as it should, from nothing but the words that its launch is given.

Whoever claims a ticket waits for the ends of instances (pairs of `upstream`) and for earlier tasks of its own one. It is shown
that all these have earlier tickets, for any number of blocks:

- each instance has the tickets of its program's pieces, in their order, and nobody else's lie between them, whatever the order
  of instances is;
  that a piece waits for earlier ones of its program only is `kitsune-check-progress`' proof;
- each pair names the last counter of an instance whose tickets all come before, and no more posts than that instance makes;
- instances that end with one before them, as the condition of both does not hold, wait for nothing that may not have ended;
- counters, partial results, intermediates and pointers of two instances do not overlap, and lie inside of what there is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kitsune_mlir.errors import KitsuneError
from kitsune_mlir.runtime.epoch import Epoch, Instance, Packed
from kitsune_mlir.runtime.epoch_manifest import RECORD, RECORD_BYTES, EpochManifest

__all__ = ["EpochFault", "check_epoch"]


class EpochFault(KitsuneError):
    """What is wrong with an epoch's words."""


def check_epoch(epoch: Epoch, packed: Packed, base: int, arena: int) -> None:
    """Prove of an epoch's words that the launch ends and runs each instance after those that it depends on.

    Args:
        epoch: what they are to say.
        packed: the words.
        base, arena: as `Epoch.pack` was given them.

    Raises:
        EpochFault: it is not so; names the first instance, task or ticket of which it is not.
    """
    manifest, instances = epoch.manifest, epoch.instances
    tickets = packed.data[packed.tickets : packed.tickets + 8 * epoch.tickets].view(np.int32).reshape(-1, 2)
    whole = packed.data[packed.records : packed.records + manifest.record_bytes * len(instances)].reshape(len(instances), -1)
    records = np.ascontiguousarray(whole[:, :RECORD_BYTES]).view(RECORD)[:, 0]
    links = packed.data[packed.upstream : packed.maps].view(np.int32).reshape(-1, 2)
    ends = _check_tickets(manifest, instances, tickets, records)
    _check_loops(epoch, records["predicate_bytes"] >> 8)
    _check_places(epoch, packed, whole, records, base, arena)
    for number, (instance, record) in enumerate(zip(instances, records, strict=True)):
        first, count = int(record["upstream"]), int(record["upstream_count"])
        if first < 0 or count < 0 or first + count > len(links):
            raise EpochFault(f"instance {number} has pairs [{first}, {first + count}) of {len(links)}")
        wanted = sorted((int(records[other]["done"]), _posts(manifest, instances[other])) for other in instance.upstream)
        found = sorted((int(slot), int(posts)) for slot, posts in links[first : first + count])
        if found != wanted:
            raise EpochFault(f"instance {number} waits for counters and posts {found}; what it depends on has {wanted}")
        for other in instance.upstream:
            if ends[other] > int(record["first_ticket"]):
                raise EpochFault(
                    f"instance {number} waits for instance {other}, whose last ticket is {ends[other] - 1}, and has ticket "
                    f"{int(record['first_ticket'])}"
                )


def _posts(manifest: EpochManifest, instance: Instance) -> int:
    return manifest.programs[instance.program].target


def _check_tickets(
    manifest: EpochManifest, instances: Sequence[Instance], tickets: np.ndarray, records: np.ndarray
) -> list[int]:
    """Each instance's tickets are its program's pieces in order, one instance's behind another's, in whatever order of
    instances; the ticket behind each instance's last."""
    place, ends = 0, [0] * len(instances)
    for number in np.argsort(records["first_ticket"], kind="stable").tolist():
        record, program = records[number], manifest.programs[instances[number].program]
        if int(record["first_ticket"]) != place or int(record["first"]) != place - program.first_piece:
            raise EpochFault(f"instance {number} begins with ticket {place}, its record says {int(record['first_ticket'])}")
        for step in program.steps:
            own = tickets[place : place + step.pieces]
            wrong = (own[:, 0] != number) | (own[:, 1] != 2 * step.step + step.root)
            if len(own) < step.pieces or wrong.any():
                piece = int(wrong.argmax()) if wrong.any() else len(own)
                raise EpochFault(f"ticket {place + piece} is not piece {piece} of task '{step.name}' of instance {number}")
            place += step.pieces
        ends[number] = place
    if place != len(tickets):
        raise EpochFault(f"there are {len(tickets)} tickets for {place} pieces of work")
    return ends


def _check_loops(epoch: Epoch, rests: np.ndarray) -> None:
    """Who ends with the instance before it has its condition and waits for it, and else only for what has ended when that one
    is decided: what it waited for, or what those did with which it ends."""
    ended: set[int] = set()
    for number, (instance, rest) in enumerate(zip(epoch.instances, rests.tolist(), strict=True)):
        ended = ended if number and rests[number - 1] else {*instance.upstream}
        if rest and (not epoch.manifest.loops or number + 1 == len(rests) or rest != rests[number + 1] + 1):
            raise EpochFault(f"{rest} instances are said to end with instance {number}, and not as many with the next one")
        if not rest:
            continue
        after = epoch.instances[number + 1]
        if not after.predicate or after[3:] != instance[3:] or number not in after.upstream:
            raise EpochFault(
                f"instance {number + 1} ends with instance {number}, whose condition it has not or for which it does not wait"
            )
        ended = ended | {number}
        if early := {*after.upstream} - ended:
            raise EpochFault(
                f"instance {number + 1} ends with instance {number}, when instances {sorted(early)} may not have ended"
            )


def _check_places(epoch: Epoch, packed: Packed, whole: np.ndarray, of: np.ndarray, base: int, arena: int) -> None:
    """Memory of instances: inside of what there is, and nobody else's."""
    programs = [epoch.manifest.programs[instance.program] for instance in epoch.instances]
    arenas: list[int] = []
    for number, (instance, program) in enumerate(zip(epoch.instances, programs, strict=True)):
        if int(of["pointers"][number]) + 8 * program.first_pointer != RECORD_BYTES:
            raise EpochFault(f"instance {number} looks for its pointers elsewhere than behind its record")
        words = whole[number, RECORD_BYTES:].view(np.uint64)[: program.arguments].tolist()
        if words[:-1] != list(instance.pointers):
            raise EpochFault(f"instance {number} has other pointers than it was given")
        arenas.append(words[-1] - arena)
        predicate = int(of["predicate"][number]), int(of["predicate_bytes"][number]) % 256
        if predicate != (instance.predicate, instance.predicate_bytes):
            raise EpochFault(f"instance {number} has another predicate than it was given")
        decision = int(of["slots"][number]) + program.first_slot + program.slots - 1
        if epoch.manifest.loops and int(of["decision"][number]) != decision:
            raise EpochFault(f"instance {number} is decided with counter {int(of['decision'][number])}, not {decision}")
        said, done = (int(of["done"][number]), int(of["target"][number])), int(of["slots"][number]) + program.done
        if said != (done, program.target):
            raise EpochFault(f"instance {number} is said to end with counter and count {said}; it posts to {done}")
    _apart("counters", of["slots"] + [p.first_slot for p in programs], [p.slots for p in programs], epoch.slots)
    _apart("partial results", of["partials"], [p.partial_bytes for p in programs], epoch.partial_bytes)
    _apart("intermediates", np.array(arenas), [p.arena_bytes for p in programs], epoch.arena_bytes)
    starts = of["maps"].astype(np.int64) - base - packed.maps + [128 * p.first_map for p in programs]
    _apart("tensor maps", starts, [128 * len(p.maps) for p in programs], len(packed.data) - packed.maps)


def _apart(what: str, starts: np.ndarray, sizes: Sequence[int], whole: int) -> None:
    end = 0
    for start, size, number in sorted(zip(starts.tolist(), sizes, range(len(sizes)), strict=True)):
        if size and not end <= start <= whole - size:
            raise EpochFault(f"the {what} of instance {number} are at {start}, of {whole}, where {end} are another's")
        end = start + size if size else end
