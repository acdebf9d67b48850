"""Analyse finished runs: comparisons with intervals, studies over seeds, replayed credit, entropy and surprisal.

    turnwise compare runs/gigpo -- runs/grpo        compare A with B, with intervals
    turnwise study studies/turn-ppo-household.toml  train a grid of methods and seeds, and compare
    turnwise recredit runs/a --method gigpo         assign another method's credit to the same rollouts
    turnwise analyse surprisal runs/a               make the paper's figures from your run

This package only reads run folders. Training does not need it.
"""
