"""Compute exactly how a method of credit assignment changes gradient and entropy, in small problems.

    from turnwise.credit.analysis import PROBLEMS, measure

    measure(my_method, PROBLEMS["failures"], size=3).cosine

`decisions` defines the problems, `groups` enumerates groups of trajectories, `bias` and `drift` measure, and `tables`
formats the results. `python -m turnwise.credit.analysis` writes the reference page.
"""

from turnwise.credit.analysis.bias import Measurement, measure, rows
from turnwise.credit.analysis.decisions import PROBLEMS, Problem
from turnwise.credit.analysis.drift import Drift, measure_drift

__all__ = ["PROBLEMS", "Drift", "Measurement", "Problem", "measure", "measure_drift", "rows"]
