"""A plain taskset with a tool, which a server of its own runs."""

import verifiers.v1 as vf


class Data(vf.TaskData):
    answer: str


class Calculator(vf.Toolset[vf.ToolsetConfig, vf.State]):
    @vf.tool
    async def add(self, a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)


class Config(vf.TaskConfig):
    calculator: vf.ToolsetConfig = vf.ToolsetConfig()


class AddTask(vf.Task[Data, vf.State, Config]):
    @classmethod
    def toolsets(cls, config):
        return [Calculator(config.calculator)]

    @vf.reward
    async def right(self, trace) -> float:
        return float(self.data.answer in (trace.assistant_messages[-1].content or ""))


class SetConfig(vf.TasksetConfig):
    task: Config = Config()


class AddTaskset(vf.Taskset[AddTask, SetConfig]):
    def load(self):
        for number in range(6):
            yield AddTask(Data(prompt=f"How much is {number} + 40?", answer=str(number + 40)), self.config.task)


__all__ = ["AddTaskset"]

if __name__ == "__main__":
    Calculator.run()
