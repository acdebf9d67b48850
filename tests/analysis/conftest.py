"""What several files here look at."""

import pytest

from turnwise.credit.analysis.drift import Drift, measure_drift


@pytest.fixture(scope="session")
def drift() -> list[Drift]:
    """Drift of entropy in every setting, which takes seconds to enumerate."""
    return list(measure_drift())
