"""Define `turnwise serve-model`."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from turnwise.base.recipes import shipped_recipes
from turnwise.base.terminal import say
from turnwise.commands.common import count, load_libraries, natural, run_server


def add(commands: Any) -> None:
    """Add the command."""
    serve = commands.add_parser("serve-model", help="serve a small model for training, over the Tinker API")
    serve.add_argument("model", metavar="MODEL|RECIPE", help="folder, 'smollm2' or hub name; a recipe: its first model")
    serve.add_argument(
        "overrides", nargs="*", default=[], help="overrides such as run.device=cuda model.hidden_size=32"
    )
    serve.add_argument("--full", action="store_true", help="train all weights; default: adapters of the requested rank")
    serve.add_argument("--folder", type=Path, default=Path("served"), help="where weights are saved; default: served")
    serve.add_argument("--models", type=count, default=4, help="maximum number of models in training; default: 4")
    serve.add_argument("--saved", type=count, default=1000, help="maximum number of saved files; default: 1000")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0: every interface")
    serve.add_argument("--port", type=natural, default=8030, help="port to listen on; default: 8030; 0: a free one")
    serve.set_defaults(run=_serve)


def _serve(options: argparse.Namespace) -> int:
    from turnwise.extensions.gateway.http import listen

    listen(options.host, options.port).close()  # a taken port is told before the model is loaded
    load_libraries()
    from turnwise.config import load_config
    from turnwise.environments.suites import make_suite
    from turnwise.models.pretrained import pretrained_policy
    from turnwise.train.extension import Context, make_extensions
    from turnwise.train.resume import use_device
    from turnwise.train.warmstart import warm_policy

    recipe = options.model in shipped_recipes() or options.model.endswith(".toml")
    named = [] if recipe else [f"model.name={options.model}", "model.max_context=64"]
    overrides = [*named, "warmstart.steps=0", "warmstart.dagger_rounds=0", *options.overrides]
    config = load_config(Path(options.model) if recipe else None, overrides)
    if recipe:
        suite = make_suite(config.environment)
        texts = [text for each in make_extensions(Context(config, suite)) for text in each.texts()]
        policy, _ = warm_policy(config, suite, texts=texts)
    else:
        policy = pretrained_policy(config.model, config.prompt, seed=config.run.seed)
    policy.model.to(use_device(config.run))  # pyright: ignore[reportArgumentType]
    run_server(_run(policy, options), options.stop)
    return 0


async def _run(policy: Any, options: argparse.Namespace) -> None:
    import asyncio

    from turnwise.environments.isolation import TOKEN_VARIABLE
    from turnwise.environments.serve_guard import token_for
    from turnwise.extensions.tinker.serve import TinkerServer, make_http

    def decode(ids: Any) -> str:
        return str(policy.tokenizer.decode(list(ids)))

    limits = {"full": options.full, "models": options.models, "saved": options.saved}
    server = TinkerServer(policy.model, options.model, decode, options.folder, **limits)
    token = token_for(options.host)
    http = make_http(server, token)
    address = await http.start(options.host, options.port)
    options.signs_of_life.close()
    try:
        say(f"{options.model} at {address}; Ctrl-C ends it", file=sys.stderr, flush=True)
        if token and not os.environ.get(TOKEN_VARIABLE):
            say(f"callers need this token as TINKER_API_KEY: {token}", file=sys.stderr, flush=True)
        while options.stop.asked is None:
            await asyncio.sleep(0.1)
    finally:
        await http.aclose()
