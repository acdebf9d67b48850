"""Evaluate a run on held-out tasks, and record the outcome."""

import time

from turnwise.train.diverged import refuse_diverged
from turnwise.train.evaluation.assess import assess
from turnwise.train.evaluation.outcomes import write_outcomes
from turnwise.train.evaluation.play import common_failure, evaluate
from turnwise.train.run import Run


def evaluate_held_out(run: Run) -> None:
    """Play and record the held-out panel; the full panel before the first step and after the last."""
    config = run.config
    start = time.perf_counter()
    with run.stop.open():
        metrics, trajectories = evaluate(
            run.collector,
            run.models,
            run.suite.tasks(config.environment.eval_split),
            episodes=config.evaluate.episodes_after(run.step, config.run.steps),
            temperature=config.evaluate.temperature,
            on_turn=run.display.turn,
        )
        metrics |= assess(run.suite, run.models, config.model, config.rollout, config.evaluate.temperature)
    if run.step:
        refuse_diverged(run.folder, run.step, [each.failure for each in trajectories])
    write_outcomes(run.folder.table("evaluations", run.step), trajectories)
    record = {f"eval/{name}": value for name, value in metrics.items()}
    run.folder.log({"step": run.step, **record, "time/eval_s": time.perf_counter() - start})
    cause = common_failure(trajectories)
    run.unevaluated = "" if metrics["episodes"] else cause
    run.display.evaluation(run.step, metrics, cause)
