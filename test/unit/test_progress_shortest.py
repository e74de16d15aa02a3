"""The fewest tiles that let others begin: against all subsets of small random programs."""

import itertools
import random

from kitsune_mlir.passes.progress import shortest
from kitsune_mlir.passes.progress.shortest import Shortest, run_of

TILES, SLOTS = 8, 5


def random_program(rng: random.Random):
    """(waits, posters) of tiles (0, 0) ... (0, TILES - 1), which may all finish, and of the goal (1, 0)."""
    tiles = [(0, n) for n in range(TILES)]
    posts = {slot: {tile: rng.choice([1, 1, 2]) for tile in tiles if rng.random() < 0.45} for slot in range(SLOTS)}
    waits = {tile: {slot: rng.randint(1, 3) for slot in range(SLOTS) if rng.random() < 0.2} for tile in tiles}
    waits[1, 0] = {slot: rng.randint(1, 4) for slot in range(SLOTS) if rng.random() < 0.6}
    return (lambda tile: {(0, s): n for s, n in waits[tile].items()}), (lambda slot: posts[slot[1]]), tiles


def enough(tiles, waits, posters) -> bool:
    ran = run_of(list(tiles), waits, posters)
    return len(ran) == len(tiles) and all(
        sum(n for tile, n in posters(slot).items() if tile in tiles) >= count for slot, count in waits((1, 0)).items()
    )


def test_no_smaller_set_is_enough():
    rng, found, with_choice = random.Random(3), 0, 0
    while found < 150:
        waits, posters, tiles = random_program(rng)
        able = run_of(tiles, waits, posters)  # only these can ever finish
        usable = lambda slot, posters=posters, able=able: {t: n for t, n in posters(slot).items() if t in able}  # noqa: E731
        if not enough(able, waits, usable):
            continue
        sets = (s for size in range(len(able) + 1) for s in itertools.combinations(able, size))
        fewest = next(len(s) for s in sets if enough(s, waits, usable))
        searched = Shortest(waits, usable, [(1, 0)], able)
        assert searched.exact and len(searched.best) == fewest and enough(searched.best, waits, usable)
        found += 1
        with_choice += fewest < len(able)
    assert with_choice > 100


def test_a_search_that_is_cut_off_says_so(monkeypatch):
    monkeypatch.setattr(shortest, "BUDGET", 3)
    tiles = [(0, n) for n in range(12)]
    chains = {tile: {(0, 1 + tile[1] // 2): 1} for tile in tiles if tile[1] % 2 == 0}
    posts = {(0, 0): {tile: 1 for tile in tiles if tile[1] % 2 == 0}, **{(0, 1 + n): {(0, 2 * n + 1): 1} for n in range(6)}}
    waits = {**chains, (1, 0): {(0, 0): 3}}
    searched = Shortest(lambda tile: waits.get(tile, {}), lambda slot: posts[slot], [(1, 0)], tiles)
    assert not searched.exact and len(searched.best) == 12
    monkeypatch.setattr(shortest, "BUDGET", 600)
    searched = Shortest(lambda tile: waits.get(tile, {}), lambda slot: posts[slot], [(1, 0)], tiles)
    assert searched.exact and len(searched.best) == 6
