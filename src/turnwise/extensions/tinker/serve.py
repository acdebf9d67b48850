"""Serve one small model with the surface of the Tinker API: JSON, and the binary form for clients that insist on it.

A request that computes is answered with a number, and its result is fetched by that number. A caller that repeats a
request, with the same model and place in the order, gets the same number: nothing is computed twice.
"""

import asyncio
import functools
import json
import re
import shutil
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from turnwise.base.errors import EngineFault, one_line
from turnwise.engines.base import Decode
from turnwise.extensions.gateway.http import HttpRequest, HttpResponse, HttpServer
from turnwise.extensions.tinker.served import LOSSES, MOST_RANK, Samplers, Trained, longest_of, read_state, samples_of
from turnwise.extensions.tinker.wire import read_forward_backward, write_losses, write_samples

API = "/api/v1/"
NAME = re.compile(r"[\w.-]{1,128}")
PATH = re.compile(r"tinker://([\w:-]{1,128})/(weights|sampler_weights)/([\w.-]{1,128})")
MOST_PENDING, MOST_RESULTS, MOST_SESSIONS = 1024, 4096, 4096
WAIT_S = 20.0
"""Time limit for a caller that waits for a result (seconds); then it asks again."""


class NotFound(EngineFault):
    """A model, a session or a result is unknown, such as after the server was restarted."""


class TinkerServer:
    """Answer requests of the Tinker API.

    Args:
        model: The model to offer.
        name: Its name.
        decode: Decodes token ids to text.
        folder: Where weights are saved.
        full: Train all weights, whatever rank callers ask for; else adapters.
        models: Models in training, and samplers, at a time. The least recently used is dropped.
        saved: Maximum number of saved files; further ones are refused.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        name: str,
        decode: Decode,
        folder: Path,
        *,
        full: bool = False,
        models: int = 4,
        saved: int = 1000,
    ):
        self.base, self.name, self.folder, self.full = model, name, folder, full
        self.most, self.saved = models, saved
        self.samplers = Samplers(model, decode, 2 * models)
        self._trained: OrderedDict[str, tuple[Trained, asyncio.Lock]] = OrderedDict()
        self._sessions: OrderedDict[str, Path | None] = OrderedDict()  # of sampling, and the weights of each
        self._results: OrderedDict[str, asyncio.Task[Any]] = OrderedDict()
        self._numbers: dict[tuple[str, str, int], str] = {}  # of requests, to find repeated ones

    async def answer(self, request: HttpRequest) -> HttpResponse:
        """Answer a request."""
        name = request.path.removeprefix(API)
        try:
            if request.headers.get(b"content-type", "").startswith("application/x-protobuf"):
                asked = read_forward_backward(request.body)
            else:
                asked = json.loads(request.body or b"{}")
            if name == "retrieve_future":
                return await self._result(asked, request.headers.get(b"accept", ""))
            if request.method == "DELETE":
                return HttpResponse(self._delete(name))
            if (known := self._plain(name, asked)) is not None:
                return HttpResponse(known)
            work = {
                "create_model": self._create,
                "forward": self._pass,
                "forward_backward": self._pass,
                "optim_step": self._step,
                "save_weights": self._save,
                "save_weights_for_sampler": self._save,
                "load_weights": self._load,
                "unload_model": self._unload,
                "asample": self._sample,
            }.get(name)
            if work is None:
                return refuse(request.path, 404, f"{request.path} is not served")
            return HttpResponse(self._begin(name, asked, work))
        except NotFound as error:
            return refuse(request.path, 404, str(error))
        except EngineFault as error:
            return refuse(request.path, 400, str(error))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return refuse(request.path, 422, f"the request cannot be read: {type(error).__name__}: {error}")

    def _plain(self, name: str, asked: Mapping[str, Any]) -> Any:
        """Answer requests that need no computing; None for all others."""
        offered = {"model_name": self.name, "max_context_length": longest_of(self.base)}
        offered |= {"trainable": True, "sampleable": True}
        match name.split("/"):
            case ["healthz"]:
                return {"status": "ok"}
            case ["client", "config" | "dynamic_config"]:
                return {}
            case ["telemetry"]:
                return {"status": "accepted"}
            case ["get_server_capabilities"]:
                return {"supported_models": [offered], "losses": [*LOSSES]}
            case ["create_session"]:
                return {"type": "create_session", "session_id": f"session-{uuid.uuid4().hex[:12]}"}
            case ["session_heartbeat"]:
                return {"type": "session_heartbeat"}
            case ["create_sampling_session"]:
                session = self._open(self._weights_of(asked))
                return {"type": "create_sampling_session", "sampling_session_id": session}
            case ["samplers", session]:
                return {"sampler_id": session, "base_model": self.name}
            case ["get_info"]:
                rank = self._model(asked["model_id"])[0].rank
                about = {"model_id": asked["model_id"], "is_lora": rank > 0, "lora_rank": rank, "model_name": self.name}
                return {"type": "get_info", "model_data": {"model_name": self.name, "tokenizer_id": self.name}, **about}
            case ["weights_info"]:
                rank = read_state(self._file(asked["tinker_path"]))["rank"]
                return {"base_model": self.name, "is_lora": rank > 0, "lora_rank": rank}
        return None

    def _begin(self, name: str, asked: Any, work: Callable[[str, Any], Awaitable[Any]]) -> dict[str, Any]:
        """Begin to compute, and return the number of the request."""
        count = samples_of(asked)
        owner = str(asked.get("model_id") or asked.get("sampling_session_id") or "")
        new = name == "create_model" or (name == "load_weights" and not owner)
        model = f"{asked['session_id']}:train:{int(asked['model_seq_id'])}" if new else owner  # as newer clients count
        if not new and name != "asample":
            self._model(model)
        elif name == "asample" and owner and owner not in self._sessions:
            raise NotFound(f"there is no sampling session {owner!r}; the server may have been restarted")
        place = (name, model, 1 if new else int(asked.get("seq_id") or 0))
        if (number := self._numbers.get(place)) is None or not place[2] or number not in self._results:
            if sum(not task.done() for task in self._results.values()) >= MOST_PENDING:
                raise EngineFault(f"{MOST_PENDING} requests are in progress; ask again later")
            number = uuid.uuid4().hex
            self._results[number] = asyncio.ensure_future(_as_result(work(model, asked)))
            self._numbers[place] = number
            while len(self._results) > MOST_RESULTS and next(iter(self._results.values())).done():
                self._results.popitem(last=False)
            if len(self._numbers) > 2 * MOST_RESULTS:
                self._numbers = {key: value for key, value in self._numbers.items() if value in self._results}
        ids = {"sample_sequence_ids": [f"{number}-{i}" for i in range(count)]} if name == "asample" else {}
        return {"request_id": number, "model_id": model, **ids}

    async def _result(self, asked: Mapping[str, Any], accepted: str) -> HttpResponse:
        number = asked["request_id"]
        if (task := self._results.get(number)) is None:
            raise NotFound(f"there is no request {number!r}; the server may have been restarted")
        await asyncio.wait({task}, timeout=WAIT_S)
        if not task.done():
            return HttpResponse({"type": "try_again", "request_id": number, "queue_state": "active"})
        result = task.result()
        if "x-protobuf" in accepted and "json" not in accepted and "error" not in result:
            write = write_samples if "sequences" in result else write_losses
            return HttpResponse(write(result))
        return HttpResponse(result)

    def _model(self, model_id: str) -> tuple[Trained, asyncio.Lock]:
        if model_id not in self._trained:
            raise NotFound(f"there is no model {model_id!r}; the server may have been restarted")
        self._trained.move_to_end(model_id)
        return self._trained[model_id]

    async def _alone(self, model_id: str, work: Callable[..., Any], *given: Any, **options: Any) -> Any:
        """Compute in a thread, in the order of the requests for this model."""
        trained, lock = self._model(model_id)
        async with lock:
            return await asyncio.to_thread(functools.partial(work, trained, *given, **options))

    async def _create(self, model_id: str, asked: Any) -> Any:
        self._check_name(asked["base_model"])
        wanted = asked.get("lora_config") or {}
        rank = 0 if self.full else int(wanted.get("rank", 32))
        if not 0 <= rank <= MOST_RANK:
            raise EngineFault(f"lora_config.rank={rank}: expected at most {MOST_RANK}")
        trained = await asyncio.to_thread(Trained, self.base, rank, int(wanted.get("seed") or 0))
        self._trained[model_id] = trained, asyncio.Lock()
        while len(self._trained) > self.most:
            self._trained.popitem(last=False)
        return {"type": "create_model", "model_id": model_id}

    async def _pass(self, model_id: str, asked: Any) -> Any:
        forward = "forward_input" in asked or asked.get("forward_only")
        given = asked.get("forward_input") or asked["forward_backward_input"]
        return await self._alone(model_id, Trained.passed, given, backward=not forward)

    async def _step(self, model_id: str, asked: Any) -> Any:
        return await self._alone(model_id, Trained.step, asked["adam_params"])

    async def _save(self, model_id: str, asked: Any) -> Any:
        to_sample = asked["type"] == "save_weights_for_sampler"
        kind, temporary = ("sampler_weights" if to_sample else "weights"), asked.get("path") is None
        name = f"step-{int(asked.get('sampling_session_seq_id') or 0)}-{uuid.uuid4().hex[:8]}"
        path = f"tinker://{model_id}/{kind}/{name if temporary else asked['path']}"
        file = self._file(path, exists=False)
        if sum(1 for _ in self.folder.glob("*/*/*.pt")) >= self.saved:
            raise EngineFault(f"{self.saved} files are saved in {self.folder.name}: delete some, or allow more")
        await self._alone(model_id, Trained.save, file, to_sample=to_sample)
        self.samplers.forget(file)  # a name may be saved again
        answer = {"type": asked["type"], "path": None if temporary else path}
        if to_sample and asked.get("sampling_session_seq_id") is not None:
            answer["sampling_session_id"] = self._open(file)
            if temporary:
                self._prune(file.parent)
        return answer

    async def _load(self, model_id: str, asked: Any) -> Any:
        file = self._file(asked["path"])
        if model_id not in self._trained:  # newer clients create a model by loading its weights
            await self._create(model_id, {"base_model": self.name, "lora_config": {"rank": read_state(file)["rank"]}})
        await self._alone(model_id, Trained.load, file, optimizer=bool(asked.get("optimizer", True)))
        return {"type": "load_weights", "path": asked["path"], "model_id": model_id}

    async def _unload(self, model_id: str, asked: Any) -> Any:
        self._trained.pop(model_id, None)
        return {"type": "unload_model", "model_id": model_id}

    async def _sample(self, session: str, asked: Any) -> Any:
        if session:
            return await self.samplers.sample(self._sessions[session], asked)
        return await self.samplers.sample(self._weights_of(asked), asked)

    def _weights_of(self, asked: Mapping[str, Any]) -> Path | None:
        """Return the file of the weights that are asked for by path; None: the base model is asked for by name."""
        if path := asked.get("model_path"):
            return self._file(path)
        self._check_name(asked.get("base_model"))
        return None

    def _check_name(self, name: str | None) -> None:
        if name != self.name:
            raise EngineFault(f"there is no model {name!r}; this server has {self.name!r}")

    def _open(self, weights: Path | None) -> str:
        session = f"sampling-{uuid.uuid4().hex[:12]}"
        self._sessions[session] = weights
        while len(self._sessions) > MOST_SESSIONS:
            self._sessions.popitem(last=False)
        return session

    def _prune(self, folder: Path) -> None:
        """Delete unnamed samplers, all but the last."""
        unnamed = sorted(folder.glob("step-*-????????.pt"), key=lambda file: file.stat().st_mtime_ns)
        for file in unnamed[: -2 * self.most]:
            file.unlink(missing_ok=True)
            self.samplers.forget(file)

    def _file(self, path: str, *, exists: bool = True) -> Path:
        found = PATH.fullmatch(path)
        if not found or not NAME.fullmatch(found[3]) or set(found[3]) == {"."}:
            raise EngineFault(f"{path!r} is not a path; expected tinker://MODEL/weights/NAME")
        file = self.folder / found[1].replace(":", "-") / found[2] / f"{found[3]}.pt"
        if exists and not file.is_file():
            raise EngineFault(f"nothing is saved as {path}")
        return file

    def _delete(self, name: str) -> Any:
        _, model_id, _, *rest = [*name.split("/"), "", "", ""]
        file = self._file(f"tinker://{model_id}/{'/'.join(part for part in rest if part)}")
        file.unlink()
        self.samplers.forget(file)
        if not any(file.parent.iterdir()):
            shutil.rmtree(file.parent)
        return {}


async def _as_result(work: Awaitable[Any]) -> Any:
    """Return a result, or the error; `category` says who can fix it."""
    try:
        return await work
    except EngineFault as error:
        return {"error": str(error), "category": "user"}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return {"error": f"the request cannot be read: {type(error).__name__}: {error}", "category": "user"}
    except Exception as error:  # out of memory, a full disk
        return {"error": one_line(f"{type(error).__name__}: {error}")[:300], "category": "server"}


def refuse(path: str, status: int, why: str) -> HttpResponse:
    """Make the answer to a request that is refused."""
    return HttpResponse({"detail": why}, status)


def make_http(server: TinkerServer, token: str | None) -> HttpServer:
    """Make the HTTP server; callers send the token as their API key."""
    return HttpServer(server.answer, refuse, token=token)
