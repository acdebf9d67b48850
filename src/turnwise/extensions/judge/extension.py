"""Let measures ask a judge."""

from turnwise.engines.models import Models
from turnwise.environments.hosts import Environments
from turnwise.extensions.judge.judge import Judge, make_judge
from turnwise.models.pretrained import check_smollm2
from turnwise.train.extension import Extension


class Judging(Extension):
    """Ask the judge of `[judge]`."""

    def check(self) -> None:
        """Raise a ConfigError if the judge's model is missing."""
        if self.settings.model == "smollm2":
            check_smollm2("judge.model='smollm2'")

    def service(self, models: Models, environments: Environments) -> Judge:
        """Return the judge."""
        policy, precision = models.policy, self.context.config.model.precision
        return make_judge(self.settings, policy.policy, policy.sampler, precision, self.context.device)
