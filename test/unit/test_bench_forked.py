"""Cases in processes of their own: answers, errors, processes that end, and such that hang."""

import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.forked import Turns, answer_of, answers_of, in_turns
from bench.records import Record


def test_an_answer_comes_back_however_long_it_is() -> None:
    assert answer_of(lambda: {"case": "a", "text": "x" * 300_000}, "a", 20)["text"] == "x" * 300_000


def test_what_goes_wrong_is_told() -> None:
    def fail() -> dict:
        raise ValueError("no such tile")

    assert answer_of(fail, "b", 20) == {"case": "b", "problem": "ValueError: no such tile"}
    assert answer_of(lambda: os._exit(3), "c", 20) == {"case": "c", "problem": "its process ended with status 3"}


def test_one_that_hangs_is_given_up() -> None:
    start = time.monotonic()
    assert answer_of(lambda: time.sleep(60), "d", 0.5) == {"case": "d", "problem": "no answer in 0.5 s"}
    assert time.monotonic() - start < 20


def test_cases_prepare_side_by_side_and_are_timed_alone(tmp_path: Path):
    turns = Turns(tmp_path / "turns")

    def work(name: str) -> dict[str, float]:
        with turns.preparing() as prepared:
            (tmp_path / f"begun-{name}").touch()
            while len(list(tmp_path.glob("begun-*"))) < 3:  # if they do not prepare side by side, their time ends here
                time.sleep(0.01)
            ready = time.monotonic()
            prepared()
            start = time.monotonic()
            time.sleep(0.05)
            return {"ready": ready, "start": start, "end": time.monotonic()}

    def dies() -> Any:
        with turns.preparing() as prepared:
            prepared()
            os._exit(3)

    told: dict[str, dict[str, Any]] = {}
    works = {name: functools.partial(work, name) for name in "abc"}
    answers_of({**works, "dead": dies}, 20, 4, told.__setitem__)
    assert told.pop("dead")["problem"] == "its process ended with status 3"
    times = sorted(told.values(), key=lambda one: one["start"])
    assert max(one["ready"] for one in times) <= times[0]["start"], "none is timed while another prepares"
    assert all(one["end"] <= after["start"] for one, after in zip(times, times[1:], strict=False))


def test_a_case_that_is_too_slow_costs_no_other(tmp_path: Path):
    def works(rest: float) -> Callable[[Callable[[], None]], dict[str, Any]]:
        def work(prepared: Callable[[], None]) -> dict[str, Any]:
            try:
                time.sleep(rest)
            except Exception:  # as one that goes on without a part
                time.sleep(rest)
            prepared()
            return {"done": True}

        return work

    record = Record.open(tmp_path / "record.json", False)
    record.begin({})
    in_turns({"quick": works(0.5), "slow": works(30)}, record, 2.0, 2)
    assert record.cases["quick"]["done"]
    assert record.cases["slow"]["problem"] == "LateError: not prepared in 2.0 s"


def test_cases_that_are_not_timed_do_not_wait_for_each_other(tmp_path: Path):
    def slow() -> dict[str, Any]:
        deadline = time.monotonic() + 20
        while not (tmp_path / "third").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return {"third came": (tmp_path / "third").exists()}

    def third() -> dict[str, Any]:
        (tmp_path / "third").touch()
        return {}

    told: dict[str, dict[str, Any]] = {}
    answers_of({"slow": slow, "second": dict, "third": third}, 30, 2, told.__setitem__, together=False)
    assert told["slow"] == {"third came": True} and told.keys() == {"slow", "second", "third"}
