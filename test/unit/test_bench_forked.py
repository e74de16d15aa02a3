"""Cases in processes of their own: answers, errors, processes that end, and such that hang."""

import os
import time

from bench.forked import answer_of


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
