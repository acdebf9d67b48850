"""Two seats that talk with one another."""

import verifiers.v1 as vf


class Config(vf.EnvConfig):
    asker: vf.AgentConfig = vf.AgentConfig()
    teller: vf.AgentConfig = vf.AgentConfig()


class Relay(vf.Env[Config]):
    async def run(self, task, agents):
        await agents.asker.run(task)


class Tasks(vf.Taskset[vf.Task, vf.TasksetConfig]):
    def load(self):
        yield vf.Task(vf.TaskData(prompt="hello"), self.config.task)


__all__ = ["Relay", "Tasks"]
