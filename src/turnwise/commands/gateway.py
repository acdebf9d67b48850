"""Define `turnwise gateway`."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from turnwise.base.terminal import say
from turnwise.commands.common import count, load_libraries, natural, note, run_server, seconds
from turnwise.commands.policies import load_policy


def add(commands: Any) -> None:
    """Add the command."""
    gateway = commands.add_parser("gateway", help="serve a policy over OpenAI's API, and record what agents do with it")
    gateway.add_argument("policy", metavar="RUN|MODEL", help="a run, or a chat model: a folder, 'smollm2', a hub name")
    gateway.add_argument(
        "overrides", nargs="*", default=[], help="overrides such as engine.name=server engine.url=http://gpu:8000"
    )
    gateway.add_argument("--step", type=int, help="step of a run's checkpoint; default: the last")
    gateway.add_argument("--out", type=Path, metavar="FOLDER", help="folder to record in; default: nothing is recorded")
    gateway.add_argument("--batch", type=count, default=64, help="trajectories per recorded step; default: 64")
    gateway.add_argument(
        "--reward-timeout",
        type=seconds,
        default=600.0,
        metavar="SECONDS",
        help="longest silence of a session without a reward; default: 600",
    )
    gateway.add_argument("--sessions", type=count, default=1024, help="maximum number of open sessions; default: 1024")
    gateway.add_argument("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0: every interface")
    gateway.add_argument("--port", type=natural, default=8020, help="port to listen on; default: 8020; 0: a free one")
    gateway.set_defaults(run=_gateway)


def _gateway(options: argparse.Namespace) -> int:
    from turnwise.extensions.gateway.http import listen

    listen(options.host, options.port).close()  # a taken port is told before the model is loaded
    load_libraries()
    from turnwise.engines.build import make_engine
    from turnwise.engines.models import Models, NamedModel
    from turnwise.rollout.collectors import make_sampling
    from turnwise.train.folder import RunFolder
    from turnwise.train.resume import use_device

    if options.out is not None:
        RunFolder.refuse_existing(options.out, another="--out FOLDER")
    config, policy = load_policy(options.policy, options.overrides, options.step)
    config.engine.check()
    policy.model.to(use_device(config.run))
    models = Models(policy=NamedModel(policy, make_engine(config.engine, config.model.precision, policy)))
    models.publish()
    sampling = make_sampling(config.rollout, policy, seed=config.run.seed)
    options.stop.why_late = "sessions are recorded first; a second signal ends the process at once"
    run_server(_serve(models, sampling, options, config), options.stop)
    return 0


async def _serve(models: Any, sampling: Any, options: argparse.Namespace, config: Any) -> None:
    from turnwise.environments.isolation import TOKEN_VARIABLE
    from turnwise.environments.serve_guard import token_for
    from turnwise.extensions.gateway.recorder import Recorder
    from turnwise.extensions.gateway.server import Gateway
    from turnwise.extensions.gateway.session import Serving
    from turnwise.integrations.recorded import RecordedRun

    policy = models.policy.policy
    serving = Serving(
        engine=models.policy.sampler,
        fmt=policy.format,
        sampling=sampling,
        max_context=policy.max_context,
        fixed=False,
        schemas=config.engine.name == "server",
    )
    recorded: RecordedRun | None = None

    def write(trajectories: Sequence[Any]) -> None:
        if recorded is not None:
            recorded.add(trajectories)

    recorder = Recorder(
        serving, write, batch=options.batch, patience_s=options.reward_timeout, sessions=options.sessions
    )
    token = token_for(options.host)
    gateway = Gateway(serving.fmt, token=token, opens=recorder.open)
    address = await gateway.start(options.host, options.port)
    try:
        if options.out is not None:
            facts = {"recorded": str(options.policy)}
            recorded = RecordedRun(options.out, config, facts)  # not earlier, so that a taken port leaves no folder
        options.signs_of_life.close()
        said = f"{options.policy} at {address}/s/NAME/v1, one NAME per trajectory; Ctrl-C ends it"
        say(said, file=sys.stderr, flush=True)
        if token and not os.environ.get(TOKEN_VARIABLE):
            say(f"callers need this token as their API key: {token}", file=sys.stderr, flush=True)
        if recorded is None:
            note("nothing is recorded; --out FOLDER records every session")
        await recorder.serve(gateway, lambda: options.stop.asked is not None)
    finally:
        await gateway.aclose()
        await serving.engine.aclose()
        if recorded is not None:
            say(f"recorded: {options.out}, {recorded.steps} steps", file=sys.stderr)
            if recorded.steps and not recorded.grouped:
                note("every session was a task of its own, so comparisons give no credit: name tasks (X-Turnwise-Task)")
