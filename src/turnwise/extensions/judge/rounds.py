"""Run several jobs that ask in rounds at the same time, so that the questions of a round make one batch."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from turnwise.extensions.judge.cases import Ask, Case, Verdict

Result = TypeVar("Result")


class Rounds:
    """Collects questions until every unfinished job waits for answers, then asks all of them at once."""

    def __init__(self, ask: Ask, jobs: int):
        self._ask, self._unfinished = ask, jobs
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[Sequence[Case], Future[list[Verdict]]]] = {}

    def ask(self, job: int, cases: Sequence[Case]) -> list[Verdict]:
        """Answer the questions of a job; blocks until the other jobs have asked theirs, or ended."""
        answers: Future[list[Verdict]] = Future()
        with self._lock:
            self._waiting[job] = cases, answers
            self._ask_if_all_wait()
        return answers.result()

    def end(self) -> None:
        """Note that a job has ended."""
        with self._lock:
            self._unfinished -= 1
            self._ask_if_all_wait()

    def _ask_if_all_wait(self) -> None:
        if not self._waiting or len(self._waiting) < self._unfinished:
            return
        asked = [self._waiting[job] for job in sorted(self._waiting)]  # the order of threads must not affect the result
        self._waiting.clear()
        try:
            verdicts = list(self._ask([case for cases, _ in asked for case in cases]))
        except BaseException as error:
            for _, answers in asked:
                answers.set_exception(error)
            return
        for cases, answers in asked:
            answers.set_result(verdicts[: len(cases)])
            del verdicts[: len(cases)]


def at_once(jobs: Sequence[Callable[[Ask], Result]], ask: Ask) -> list[Result]:
    """Run jobs, each with a function that asks; returns their results in order.

    Args:
        jobs: Functions that may ask several times.
        ask: Answers a batch; called in any thread, once at a time.
    """
    rounds = Rounds(ask, len(jobs))

    def run(number: int) -> Result:
        try:
            return jobs[number](lambda cases: rounds.ask(number, cases))
        finally:
            rounds.end()

    with ThreadPoolExecutor(max(1, len(jobs))) as threads:
        return list(threads.map(run, range(len(jobs))))
