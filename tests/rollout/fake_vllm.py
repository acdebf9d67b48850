"""A small HTTP server that answers as vLLM 0.32 does, with a transformers model, and that can be made to fail.

It caches logits by prefix, as vLLM caches keys and values: without emptying this cache, answers use old weights.
`tests/crosscheck/vllm` holds the real one to the same.
"""

import copy
import json
import threading
import time
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import torch
from safetensors.torch import load_file

from turnwise.engines.base import Sampling
from turnwise.engines.sampling import sample, uniform

GENERATE = "/inference/v1/generate"
SLOW_S = 2.5
ABORTED = {"finish_reason": "abort", "token_ids": [], "weight_versions": None}


class FakeVllm:
    """Serves a copy of a model until `stop`; `start` brings it back with the weights that it had at first.

    Attributes:
        faults: Fault of each of the next requests for a response: an HTTP status, "drop", "garbage", "abort", "slow",
            "die", "not finite" (a log-probability), "other ids" (than those of the log-probabilities) or None.
        busy: Number of the next requests to empty the cache that fail, as while it is in use.
        asked: Path and body of all requests.
        most: Largest number of requests for a response at one time.
    """

    def __init__(self, model, *, max_model_len: int = 256, delay_s: float = 0.0):
        self.model = model
        self.first = {name: value.clone() for name, value in model.state_dict().items()}
        self.max_model_len, self.delay_s = max_model_len, delay_s
        self.options = {"max_model_len": max_model_len, "logprobs_mode": "processed_logprobs", "hf_overrides": {}}
        self.faults: deque[int | str | None] = deque()
        self.busy = 0
        self.asked: list[tuple[str, Any]] = []
        self.live = self.most = 0
        self.aborted = 0  # times that all responses under way were aborted
        self.port = 0
        self._lock = threading.Lock()
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        with self._lock:
            self.model.load_state_dict(self.first)
            self.version, self.cache, self.paused = "default", {}, False
            self.aborted += 1  # threads of the server that died
        self.alive, self.readable = True, False
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), type("Handler", (Handler,), {"fake": self}))
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self.alive = False
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> "FakeVllm":
        return self

    def __exit__(self, *_: object) -> None:
        if self.alive:
            self.stop()

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        """Status and content."""
        match path:
            case "/health":
                return 200, {}
            case "/server_info":
                return 200, {"vllm_config": {"model_config": self.options, "device_config": {"device": "cpu"}}}
            case "/weight_info":
                return 200, {"weight_version": self.version}
            case "/pause" | "/resume":
                with self._lock:
                    self.paused = path == "/pause"
                    self.aborted += self.paused  # mode=abort
                return 200, {}
            case "/update_weight_version":
                self.version = body["new_version"]
                return 200, {"success": True}
            case "/reset_prefix_cache":
                if self.busy:
                    self.busy -= 1
                    return 200, {"success": False}
                self.cache.clear()
                return 200, {"success": True}
            case "/collective_rpc":
                return self.reload(body)
            case "/inference/v1/generate":
                return self.generate(body)
        return 404, {"detail": "Not Found"}

    def reload(self, body: Any) -> tuple[int, Any]:
        if body["method"] == "update_config":
            self.readable = body["kwargs"]["overrides"] == {"load_config": {"load_format": "auto"}}
            return 200, {"results": [None]}
        if not (self.paused and self.readable and body["method"] == "reload_weights"):
            return 500, {"error": "weights changed while something may have been generated"}
        try:
            new = load_file(Path(body["kwargs"]["weights_path"]) / "model.safetensors")
            self.model.load_state_dict(new)
        except (OSError, RuntimeError) as error:
            return 500, {"error": {"message": f"Worker failed with error {error}"}}
        return 200, {"results": [None]}

    def admit(self) -> int:
        """Wait while paused; returns how often responses were aborted before this one."""
        while True:
            with self._lock:
                if not self.paused:
                    return self.aborted
            time.sleep(0.001)

    def model_of(self, body: Any) -> Any:
        """The model that answers a request; None: there is no such model."""
        return self.model

    @torch.no_grad()
    def generate(self, body: Any) -> tuple[int, Any]:
        settings, ids = body["sampling_params"], list(body["token_ids"])
        model, name = self.model_of(body), body.get("model")
        if model is None:
            return 404, {"error": {"message": f"The model `{name}` does not exist."}}
        if len(ids) >= self.max_model_len:
            return 400, {"error": {"message": f"longer than the maximum model length of {self.max_model_len}"}}
        asked = Sampling(
            max_new_tokens=settings["max_tokens"], temperature=settings["temperature"], top_p=settings["top_p"]
        )
        stops, content = settings.get("stop_token_ids", []), []
        begun = self.admit()
        while len(content) < asked.max_new_tokens and not (content and content[-1]["token_id"] in stops):
            with self._lock:
                if self.aborted != begun:
                    return 200, {"choices": [{"index": 0, **ABORTED}]}
                version = self.version
                if (name, *ids) not in self.cache:
                    self.cache[name, *ids] = model(input_ids=torch.tensor([ids]), use_cache=False).logits[:, -1].float()
                logits = self.cache[name, *ids]
            place = np.array([len(ids)])
            number = torch.from_numpy(uniform(settings["seed"], np.zeros_like(place), place))
            token, logprob, _ = sample(logits, asked, number)
            ids.append(int(token))
            content.append({"token_id": int(token), "logprob": float(logprob)})
        tokens = [entry["token_id"] for entry in content]
        span = {"version": version, "start": 0, "end": len(tokens)}
        reason = "stop" if tokens[-1] in stops else "length"
        choice = {"index": 0, "finish_reason": reason, "token_ids": tokens, "weight_versions": [span]}
        return 200, {"choices": [choice | {"logprobs": {"content": content}}]}


class FakeLora(FakeVllm):
    """Started with --enable-lora: holds adapters by name, and adds them to its own model, without peft.

    Attributes:
        used: Whether it uses them.
    """

    def start(self) -> None:
        self.adapted, self.used = {}, getattr(self, "used", True)
        self.lora: Any = {"max_lora_rank": 16, "max_loras": 4}
        super().start()

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        match path:
            case "/server_info":
                status, content = super().answer(path, body)
                content["vllm_config"]["lora_config"] = self.lora
                return status, content
            case "/v1/models":
                return 200, {"data": [{"id": name} for name in ("base", *self.adapted)]}
            case "/v1/load_lora_adapter":
                self.adapted[body["lora_name"]] = self.added(Path(body["lora_path"]))
                return 200, f"Success: LoRA adapter '{body['lora_name']}' added successfully."
            case "/v1/unload_lora_adapter":
                del self.adapted[body["lora_name"]]
                return 200, "Success"
            case "/collective_rpc" | "/update_weight_version":
                return 500, {"error": "weights of a model with adapters are not replaced"}
        return super().answer(path, body)

    def added(self, folder: Path) -> Any:
        settings = json.loads((folder / "adapter_config.json").read_text())
        weights, model = load_file(folder / "adapter_model.safetensors"), copy.deepcopy(self.model)
        for name, down in weights.items():
            if name.endswith(".lora_A.weight"):
                up = weights[name.replace(".lora_A.", ".lora_B.")]
                layer = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
                model.get_submodule(layer).weight.data += settings["lora_alpha"] / settings["r"] * up @ down
        return model

    def model_of(self, body: Any) -> Any:
        name = body.get("model")
        return None if name not in self.adapted else self.adapted[name] if self.used else self.model


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections stay open, as vLLM's do
    timeout = 5.0
    fake: FakeVllm

    def do_GET(self) -> None:
        self.handle_one(None)

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.handle_one(json.loads(content) if content else None)

    def handle_one(self, body: Any) -> None:
        fake, path = self.fake, urlsplit(self.path).path
        if not fake.alive:
            self.close_connection = True
            return
        fake.asked.append((path, body))
        if path != GENERATE:
            self.reply(*fake.answer(path, body))
            return
        fault = fake.faults.popleft() if fake.faults else None
        with fake._lock:
            fake.live += 1
            fake.most = max(fake.most, fake.live)
        try:
            time.sleep(SLOW_S if fault == "slow" else fake.delay_s)
            if fault == "die":
                fake.alive = False
                threading.Thread(target=fake._server.shutdown).start()
                fake._server.server_close()
            if fault in ("drop", "die"):
                self.close_connection = True
            elif fault == "garbage":
                self.reply(200, "<html>")
            elif isinstance(fault, int):
                self.reply(fault, {"error": "by order"})
            else:
                status, answer = fake.answer(path, body)
                if fault == "abort":
                    answer["choices"][0] |= ABORTED
                elif fault == "not finite":
                    answer["choices"][0]["logprobs"]["content"][0]["logprob"] = -9999.0
                elif fault == "other ids":
                    answer["choices"][0]["token_ids"][0] += 1
                self.reply(status, answer)
        finally:
            with fake._lock:
                fake.live -= 1

    def reply(self, status: int, content: Any) -> None:
        data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:  # the client has given up
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass
