"""Prepare a run for its next step, from a recipe or from a folder to resume."""

import functools
from contextlib import ExitStack
from pathlib import Path

from turnwise.base.blocking import make_loop
from turnwise.base.cache import check_writable
from turnwise.base.stopping import Stop
from turnwise.config import Config
from turnwise.engines.build import make_engine
from turnwise.engines.models import Models, NamedModel
from turnwise.environments.suites import make_suite, tasks_of
from turnwise.measures.verdict import check_environment
from turnwise.models.below import keep_states
from turnwise.models.policy import freeze_but_norms
from turnwise.objective.build import make_objective
from turnwise.objective.values import ValueTerm
from turnwise.rollout.experience import Steps
from turnwise.rollout.gate import Gate, VisitedEngine, VisitedEnvironments
from turnwise.rollout.pool import Pool
from turnwise.train.checkpoint import checkpoints, load_parts
from turnwise.train.credit import Credit, make_transform
from turnwise.train.critic import critic_columns, make_critic
from turnwise.train.display import Display
from turnwise.train.extension import Context, make_collectors, make_extensions, make_players
from turnwise.train.fit import check_agent, refuse_unfit
from turnwise.train.folder import RunFolder
from turnwise.train.held_out import evaluate_held_out
from turnwise.train.parts import check_model, make_learner, make_optimizer, make_plan, notes
from turnwise.train.resume import first_policy, last_state, refuse_what_would_lose, use_device
from turnwise.train.run import Run
from turnwise.train.tally import Tally
from turnwise.train.trackers import check_trackers, open_trackers
from turnwise.train.warmstart import warm_policy


def prepare(config: Config, *, resume: Path | None, display: Display, stop: Stop, held: ExitStack) -> Run:
    """Build all parts of a run, and check the configuration before the warm start.

    A new run gets its folder, first checkpoint and first evaluation. `held` locks the folder.

    Raises:
        TurnwiseError: The run cannot start as configured. Nothing that exists was changed.
    """
    config.engine.check()
    check_trackers(config.log)
    if resume is None:
        check_model(config.model)
        RunFolder.refuse_existing(config.run_folder)
        check_writable(config.run_folder.parent)
    device, seed, rollout = use_device(config.run), config.run.seed, config.rollout
    suite = make_suite(config.environment)
    tasks = tasks_of(suite, config.environment.name, config.environment.train_split)
    tasks_of(suite, config.environment.name, config.environment.eval_split)  # missing data should fail before training
    context = Context(config, suite, tasks, device, display.turn)
    extensions = make_extensions(context)
    for each in extensions:
        each.check()
    transform = make_transform(config.method, rollout.learns_played, config.update)
    terms = [t for e in extensions for t in e.terms()]
    objective, value = make_objective(config.update, *terms), None
    optional = config.optional_models
    measures = make_plan(transform, objective, config.update, config.engine, config.label, config.measures, optional)
    check_environment(measures, suite, config.environment.name, () if any(each.plays for each in extensions) else tasks)
    loop = make_loop(apart=rollout.max_lag > 0, persistent=rollout.step_budget is not None)
    held.callback(loop.close)
    estimated = critic_columns(config.critic, measures)
    refuse_unfit(measures, optional, config.model.adapters)
    inside = make_players(extensions, context)
    inside.tally = tally = Tally()  # pyright: ignore[reportAttributeAccessIssue]
    display.watch(tally.__str__)
    environments = VisitedEnvironments(inside, loop)
    collector = make_collectors(extensions, context, environments)
    source: Steps = Pool(tasks, rollout, seed, last_step=config.run.steps, loop=loop, environments=inside)
    for each in extensions:
        source = each.source(source, environments)
    said = {"on_demonstration": display.demonstration, "on_step": display.warm_start, "on_turn": display.turn}
    texts = [text for each in extensions for text in each.texts()]
    warm_start = functools.partial(warm_policy, config, suite, device=device, texts=texts, **said)
    for note in notes(config, transform, device):
        display.note(note)

    if resume is None:
        step, policy, states = 0, warm_start()[0], {}
        folder = held.enter_context(RunFolder.create(config).begun())
    else:
        folder = held.enter_context(RunFolder(resume).locked())
        refuse_what_would_lose(folder, config.run.steps)
        step, policy, states = last_state(folder, config.model, keep=config.checkpoint.keep) or (0, warm_start()[0], {})
        for problem in folder.problems():
            display.note(problem)
        folder.set_config(config)
    if config.update.only_norms:
        freeze_but_norms(policy.model)
    folder.trackers = open_trackers(
        config.log, folder.path, name=config.run.name, seed=seed, config=config.model_dump(mode="json"), start=step
    )
    policy.model.to(device)  # pyright: ignore[reportArgumentType]
    optimizer = make_optimizer(policy, config.update)
    if not config.critic:  # one may read the states of last tokens, which generation does not compute
        keep_states(policy.model, updates=rollout.max_lag + 1)
    engine = make_engine(config.engine, config.model.precision, policy, apart=rollout.max_lag > 0)
    engine = VisitedEngine(Gate(engine), loop)
    models = {"policy": NamedModel(policy, engine, optimizer)}
    if config.critic:
        models["critic"], critic = make_critic(policy, config.critic, estimated, seed)
        objective = make_objective(config.update, *terms, value := ValueTerm(critic))
    for each in extensions:
        models |= each.models(policy)
    services = {each.key: each.service(Models(**models), environments) for each in extensions}
    run = Run(
        config=config,
        folder=folder,
        display=display,
        device=device,
        suite=suite,
        environments=environments,
        collector=collector,
        source=source,
        measures=measures,
        method=Credit(transform),
        learner=make_learner(extensions, objective, context, value),
        models=Models(**models),
        extensions=extensions,
        services={key: service for key, service in services.items() if service is not None},
        step=step,
        stop=stop,
    )
    held.callback(run.release)
    if states:
        load_parts(run.parts, states)
    run.complete(step)
    run.models.publish(step)
    check_agent(run, tasks)
    if not checkpoints(folder):
        with stop.deferred():
            run.save()
    evaluated = {record["step"] for record in folder.metrics() if "eval/success" in record}
    if run.evaluation_is_due and step not in evaluated:  # a new run, or one that ended during an evaluation
        evaluate_held_out(run)
    if "reference" in measures.models:
        run.models = Models(**models, reference=NamedModel(first_policy(folder, device, config.engine)))
    return run
