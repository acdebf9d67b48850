"""Connect the policy to a verifiers environment: a model endpoint that returns its responses, and a chat loop.

verifiers runs a rollout itself and queries a model at each of the model's turns. Here the model is `Seat`, an
OpenAI-style endpoint in this process that waits for the trainer's response. `chat_harness` is the chat loop between the
two, which also calls tools.
"""

import asyncio
import contextlib
import dataclasses
import itertools
import json
import sys
import types
from collections.abc import Mapping
from typing import Any

from turnwise.environments.needs import needed
from turnwise.environments.tool_calls import describe_tools, read_tool_calls, without_reasoning

EXTRA = "verifiers"
"""Extra of turnwise that has what is needed here."""

BY = "the environment 'verifiers'"

HARNESS = "turnwise_seat"
"""Name under which verifiers finds our harness."""

MALFORMED = "malformed_call"
"""Tool name of a malformed call."""


@dataclasses.dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt of the policy."""

    text: str  # the messages since the last response; the first prompt also describes the tools
    tools: frozenset[str]  # names of the available tools


class SeatConversation:
    """One rollout's exchange with the policy."""

    def __init__(self):
        self.prompts: asyncio.Queue[Prompt] = asyncio.Queue()
        self.responses: asyncio.Queue[str] = asyncio.Queue()
        self._seen: list[Any] = []
        self._ids = itertools.count()

    async def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Pass the new messages of a chat completion request to the policy; returns its response as the completion."""
        messages, tools = body["messages"], body.get("tools") or []
        goes_on = bool(self._seen) and messages[: len(self._seen)] == self._seen
        new = messages[len(self._seen) + 1 :] if goes_on else messages
        self._seen = list(messages)
        texts = [_text(message) for message in new]
        if tools and not goes_on:
            texts.insert(0, describe_tools(tools))
        names = frozenset(tool["function"]["name"] for tool in tools)
        self.prompts.put_nowait(Prompt("\n\n".join(text for text in texts if text), names))
        return self._completion(await self.responses.get(), bool(tools), body.get("model", ""))

    def _completion(self, response: str, may_call: bool, model: str) -> dict[str, Any]:
        said, calls = read_tool_calls(response) if may_call else (without_reasoning(response), [])
        message: dict[str, Any] = {"role": "assistant", "content": said}
        if calls:
            message["tool_calls"] = [
                {
                    "id": f"call_{next(self._ids)}",
                    "type": "function",
                    "function": {"name": call.name or MALFORMED, "arguments": call.arguments},
                }
                for call in calls
            ]
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop", "logprobs": None}
        name = f"chatcmpl-{next(self._ids)}"
        return {"id": name, "object": "chat.completion", "created": 0, "model": model, "choices": [choice]}


class Seat:
    """The endpoint of all rollouts; a header of verifiers identifies the rollout."""

    def __init__(self):
        self.conversations: dict[str, SeatConversation] = {}

    @contextlib.asynccontextmanager
    async def serving(self):
        """Listen on a free local port; yields the address."""
        web = needed("aiohttp.web", extra=EXTRA, by=BY)
        header = needed("verifiers.v1.clients.client", extra=EXTRA, by=BY).SESSION_ID_HEADER

        async def complete(request: Any) -> Any:
            conversation = self.conversations.get(request.headers.get(header, ""))
            if conversation is None:
                raise web.HTTPGone(text="this rollout is over")
            return web.json_response(await conversation.complete(await request.json()))

        app = web.Application(client_max_size=2**27)
        app.router.add_post("/v1/chat/completions", complete)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        finally:
            await runner.cleanup()


def register_chat_harness() -> None:
    """Register our harness as a top-level module, because verifiers looks harnesses up by module name."""
    if HARNESS not in sys.modules:
        module = types.ModuleType(HARNESS)
        module.ChatHarness = chat_harness()  # pyright: ignore[reportAttributeAccessIssue]
        module.__all__ = ["ChatHarness"]  # pyright: ignore[reportAttributeAccessIssue]
        sys.modules[HARNESS] = module


def chat_harness() -> Any:
    """Make a harness class that chats in this process; verifiers' own `null` starts a process per rollout."""
    vf = needed("verifiers.v1", extra=EXTRA, by=BY)
    httpx = needed("httpx", extra=EXTRA, by=BY)
    mcp = needed("verifiers.v1.harnesses.utils.mcp", extra=EXTRA, by=BY)
    wire = needed("verifiers.v1.dialects.chat", extra=EXTRA, by=BY).message_to_wire

    class ChatHarness(vf.Harness[vf.HarnessConfig]):
        """A conversation with tools; it ends with the first response without a tool call."""

        APPENDS_SYSTEM_PROMPT = True
        SUPPORTS_MCP = True
        SUPPORTS_RESUME = True
        EXECUTES_CODE = False
        NEEDS_CONTAINER = False

        async def launch(
            self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: dict[str, str], data: Any
        ) -> Any:
            system, prompt = self.resolve_prompt(data)
            said = [{"role": "system", "content": system}] if system else []
            said += [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(map(wire, prompt or ()))
            async with contextlib.AsyncExitStack() as stack:
                servers = {"mcpServers": {name: {"url": url} for name, url in mcp_urls.items()}}
                tools, places, links = await mcp.connect_mcp(servers, stack)
                client = await stack.enter_async_context(httpx.AsyncClient(timeout=None, trust_env=False))

                async def run_tool(function: Mapping[str, str]) -> Any:
                    if function["name"] == MALFORMED:
                        return 'error: expected {"name": NAME, "arguments": {...}}'
                    if function["name"] not in places:
                        return f"error: no tool {function['name']!r}"
                    return await mcp.call_mcp(links, places, function["name"], json.loads(function["arguments"]))

                while True:
                    request = {"model": ctx.model, "messages": said, **({"tools": tools} if tools else {})}
                    answer = await client.post(
                        f"{endpoint}/chat/completions", json=request, headers={"Authorization": f"Bearer {secret}"}
                    )
                    if answer.status_code != 200:  # verifiers knows whether it stopped the rollout itself
                        return vf.ProgramResult(1, "", answer.text)
                    said.append(answer.json()["choices"][0]["message"])
                    calls = said[-1].get("tool_calls") or ()
                    if not calls:
                        return vf.ProgramResult(0, "", "")
                    for call in calls:
                        result = await run_tool(call["function"])
                        said.append({"role": "tool", "tool_call_id": call["id"], "content": result})

    return ChatHarness


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content if isinstance(part, dict))
