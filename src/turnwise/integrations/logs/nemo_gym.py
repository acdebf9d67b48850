"""Read the rollouts of NeMo Gym: a request of the Responses API, what model and tools gave, and a reward."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from turnwise.integrations.logs.logged import Logged, as_text, check, checked_ids, read_responses, reward_of
from turnwise.integrations.logs.messages import read_items, read_tools
from turnwise.integrations.logs.source import Source


class _Request(BaseModel):
    input: str | list[Any]
    instructions: str | None = None
    tools: list[Any] | None = None


class _Answer(BaseModel):
    output: list[Any]
    model: str | None = None
    error: Any = None
    incomplete_details: dict[str, Any] | None = None


class _Line(BaseModel):
    responses_create_params: _Request
    response: _Answer


class _Tokens(BaseModel, strict=True):
    prompt_token_ids: list[int] = []
    generation_token_ids: list[int] = []
    generation_log_probs: list[float] = []


def read_nemo_gym(source: Source) -> Iterator[Logged]:
    """Yield the trajectories of a file. Rollouts of a task, by its index or else its prompt, are a group."""
    for where, record in source.records():
        with source.record(where):
            line = check(_Line, record, where)
            asked, answer = line.responses_create_params, line.response
            begin = [{"role": "system", "content": asked.instructions}] if asked.instructions else []
            output = answer.output
            if output and all(isinstance(each, list) for each in output):  # transitions: what was read, and the answer
                output = output[-1]
                apart = sum(output[: len(each)] != each for each in answer.output)
                source.lack("transitions that the last one does not continue", apart)
            else:
                begin += read_items(asked.input, f"{where}: responses_create_params.input", source)
            messages = [*begin, *read_items(output, f"{where}: response.output", source)]
            responses = [
                each
                for each in read_responses(messages, read_tools(asked.tools, where), where=where)
                if len(each.history) >= len(begin)
            ]
            for response in responses:
                items = response.message.get("extra", {}).get("items", ())
                sampled = next((item for item in reversed(items) if item.get("generation_token_ids")), None)
                if sampled:
                    tokens = check(_Tokens, sampled, where)
                    response.prompt_ids, response.response_ids = tokens.prompt_token_ids, tokens.generation_token_ids
                    response.logprobs = tokens.generation_log_probs
                    checked_ids(response, where)
            task, rollout = record.get("_ng_task_index"), record.get("_ng_rollout_index")
            yield Logged(
                where,
                responses,
                task="" if task is None else f"task {as_text(task)}",
                outcome=source.outcome(reward_of(record, source.reward, where), record.get("success"), None, where),
                truncated=answer.incomplete_details is not None,
                failure=as_text(answer.error) or None,
                model=answer.model or "",
                id="" if task is None or rollout is None else f"{as_text(task)} {as_text(rollout)}",
                after=messages[len(responses[-1].history) + 1 :] if responses else [],
            )
