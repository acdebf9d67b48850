"""A number is guessed; an environment of its own plays the user."""

import verifiers.v1 as vf


class Data(vf.TaskData):
    number: int


class GuessTask(vf.Task[Data, vf.State, vf.TaskConfig]):
    @vf.reward(weight=2.0)
    async def won(self, trace) -> float:
        return float(trace.info.get("won", False))

    @vf.metric
    async def guesses(self, trace) -> float:
        return float(trace.num_turns)


class Config(vf.TasksetConfig):
    numbers: int = 5
    breaks: bool = False
    again: bool = False


class GuessConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class GuessEnv(vf.Env[GuessConfig]):
    async def setup(self, agents):
        if self.config.taskset.breaks:
            raise ValueError("no game today")

    async def run(self, task, agents):
        for _ in range(1 + self.config.taskset.again):
            await self.play(task, agents)

    async def play(self, task, agents):
        async with agents.player.interaction(task) as talk:
            segment = await talk.turn()
            while not segment.terminated:
                if segment.last_reply == "break":
                    raise ValueError("the world broke")
                guess = int(segment.last_reply) if segment.last_reply.isdecimal() else -1
                if guess == task.data.number:
                    talk.trace.info["won"] = True
                    break
                segment = await talk.turn("higher" if guess < task.data.number else "lower")


class GuessTaskset(vf.Taskset[GuessTask, Config]):
    INFINITE = True

    def load(self):
        number = 0
        while True:
            data = Data(
                name=f"guess-{number}",
                number=number % self.config.numbers,
                prompt="Guess.",
                system_prompt="Say a number.",
            )
            yield GuessTask(data, self.config.task)
            number += 1


__all__ = ["GuessEnv", "GuessTaskset"]
