"""Ask a judge, remember its verdicts, and record what it was asked."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from turnwise.base.blocking import blocking
from turnwise.base.errors import ConfigError, text_of
from turnwise.base.imports import import_named
from turnwise.engines.base import Engine
from turnwise.engines.build import make_engine
from turnwise.engines.models import Models
from turnwise.environments.hosts import Environments
from turnwise.extensions.judge.cases import ANSWERS, Ask, Case, Comparison, Question, Verdict
from turnwise.extensions.judge.chat import ChatJudge
from turnwise.extensions.judge.rubric import read_rubric
from turnwise.extensions.judge.settings import JudgeConfig
from turnwise.models.policy import Policy
from turnwise.models.pretrained import check_smollm2, pretrained_policy
from turnwise.models.settings import ModelConfig, PromptConfig
from turnwise.rollout.record import write_table
from turnwise.train.extension import Extension

SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("kind", "task", "first", "second")),
        *((name, pa.float64()) for name in ("score_first", "score_second")),
        *((name, pa.string()) for name in ("answer", "failure")),
    ]
)
"""Columns of a record of judgements. A rating has no second text; a failed case has no score, and its cause."""


class Judge:
    """Ask about each distinct case once per step. A failure is a verdict of None, never an error.

    Args:
        ask: Function of cases that returns a verdict for each, or a `ChatJudge`.
        settings: Section `[judge]` of the recipe.

    Attributes:
        settings: Section `[judge]` of the recipe.
        criteria: Those of its rubric.
        folder: Folder within that of a run, in which `finish` writes.
    """

    folder = "judgements"

    def __init__(self, ask: Ask, settings: JudgeConfig):
        self.settings, self._ask = settings, ask
        self.criteria = read_rubric(settings.rubric) if settings.rubric else []
        self._verdicts: dict[Case, Verdict] = {}
        self._records: list[dict[str, Any]] = []
        self._num_reused = 0

    @property
    def num_tokens(self) -> int:
        """Tokens that a chat model read and generated so far; 0 for a function."""
        return self._ask.num_tokens if isinstance(self._ask, ChatJudge) else 0

    def __call__(self, cases: Sequence[Case]) -> list[Verdict]:
        """Return the verdict of each case."""
        new = [case for case in dict.fromkeys(cases) if case not in self._verdicts]
        self._num_reused += len(cases) - len(new)
        if new:
            self._decide(new)
        return [self._verdicts[case] for case in cases]

    def _decide(self, cases: Sequence[Case]) -> None:
        raw: Sequence[Any] = []
        failure = ""
        try:
            raw = list(self._ask(cases))
            if len(raw) != len(cases):
                failure = f"got {len(cases)} cases and returned {len(raw)} verdicts, expected one for each"
        except Exception as error:  # a judge is foreign code: a service that is down loses verdicts, not the run
            failure = f"{type(error).__name__}: {text_of(error)[:300]}"
        if failure:
            raw = [None] * len(cases)
        chat = self._ask if isinstance(self._ask, ChatJudge) and not failure else None
        answers = chat.answers if chat else [None] * len(cases)
        for case, answer, said in zip(cases, answers, raw, strict=True):
            verdict = checked(case, said)
            self._verdicts[case] = verdict
            why = failure or ("the answer holds no scores" if answer else f"not a verdict: {said!r}"[:300])
            self._records.append(as_row(case, verdict, answer, None if verdict is not None else why))

    def finish(self, path: Path) -> dict[str, float]:
        """Write the cases of a step to a Parquet file; forget them, and return their counts."""
        num_asked = len(self._records)
        num_failed = sum(record["failure"] is not None for record in self._records)
        if self._records:
            write_table(path, pa.Table.from_pylist(self._records, schema=SCHEMA))
        counts: dict[str, float] = {"judge_asked": num_asked, "judge_reused": self._num_reused}
        if num_asked:
            counts["judge_failed_frac"] = num_failed / num_asked
        if (agreement := agree(self._records)) is not None:
            counts["judge_agreement"] = agreement
        self._records, self._num_reused = [], 0
        self._verdicts.clear()
        return {name: float(count) for name, count in counts.items()}


def agree(records: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the share of repeated answers that agree with the majority; None if no question was repeated."""
    answers: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for record in records:
        if record["kind"] == "question" and record["score_first"] is not None:
            answers[record["task"], record["first"], record["second"]].append(record["score_first"])
    repeated = [Counter(given) for given in answers.values() if len(given) > 1]
    return sum(max(each.values()) for each in repeated) / sum(map(Counter.total, repeated)) if repeated else None


def as_row(case: Case, verdict: Verdict, answer: str | None, failure: str | None) -> dict[str, Any]:
    """Return a case and its verdict as a row of `SCHEMA`."""
    texts = (case.first, case.second) if isinstance(case, Comparison) else (case.text, None)
    texts = (case.text, case.criterion) if isinstance(case, Question) else texts
    scores = verdict if isinstance(verdict, tuple) else (verdict, None)
    named = zip(("first", "second", "score_first", "score_second"), (*texts, *scores), strict=True)
    return {"kind": type(case).__name__.lower(), "task": case.task, **dict(named), "answer": answer, "failure": failure}


def checked(case: Case, verdict: Any) -> Verdict:
    """Return a verdict as numbers; None if it is not a finite number, two for a comparison, or a question's answer."""
    if isinstance(case, Question):
        if isinstance(verdict, bool | np.bool_):
            return float(verdict)
        known = ANSWERS.get(verdict.strip().lower()) if isinstance(verdict, str) else verdict
        return float(known) if isinstance(known, Real) and known in ANSWERS.values() else None
    numbers = [verdict] if not isinstance(verdict, (tuple, list)) else list(verdict)
    if len(numbers) != (2 if isinstance(case, Comparison) else 1):
        return None
    if not all(isinstance(n, Real) and not isinstance(n, bool) and math.isfinite(n) for n in numbers):
        return None
    return (float(numbers[0]), float(numbers[1])) if len(numbers) == 2 else float(numbers[0])


def make_judge(settings: JudgeConfig, policy: Policy, engine: Engine, precision: str, device: Any) -> Judge:
    """Make the judge of a run.

    Args:
        settings: Section `[judge]` of the recipe.
        policy: The policy of the run, for `model="policy"`.
        engine: Its engine.
        precision: `model.precision` of the recipe.
        device: Device of a judge's own model.

    Raises:
        ConfigError: The function cannot be imported, or the model cannot be loaded, does not chat or has no room for
            a question.
    """
    if settings.run:
        function: Callable[..., Any] = import_named(settings.run)
        if not callable(function):
            raise ConfigError(f"judge.run={settings.run!r} is a {type(function).__name__}, expected a function")
        return Judge(function, settings)
    if settings.model == "policy":
        if not policy.tokenizer.chat_template:
            raise ConfigError("judge.model='policy' needs a chat model, and this run's policy is none; name one")
    else:
        policy = pretrained_policy(
            ModelConfig(name=settings.model, max_context=settings.max_context), PromptConfig(), seed=0
        )
        policy.model.to(device).requires_grad_(False)  # pyright: ignore[reportArgumentType]
        engine = make_engine(settings.engine, precision, policy)
        blocking(engine.update_weights())
    max_context = min(settings.max_context, policy.max_context)
    if settings.max_new_tokens >= max_context:
        raise ConfigError(
            f"judge.max_new_tokens={settings.max_new_tokens} leaves no room for a question in the {max_context} tokens "
            f"that judge.model={settings.model!r} reads; lower the first"
        )
    chat = ChatJudge(
        policy.format,
        engine,
        max_context=max_context,
        max_new_tokens=settings.max_new_tokens,
        attempts=settings.attempts,
    )
    return Judge(chat, settings)


class Judging(Extension):
    """Ask the judge of `[judge]`."""

    def check(self) -> None:
        """Raise a ConfigError if the judge's model is missing."""
        if self.settings.model == "smollm2":
            check_smollm2("judge.model='smollm2'")

    def service(self, models: Models, environments: Environments) -> Judge:
        """Return the judge."""
        policy, precision = models.policy, self.context.config.model.precision
        return make_judge(self.settings, policy.policy, policy.sampler, precision, self.context.device)
