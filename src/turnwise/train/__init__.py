"""Train policies: the loop, its steps, warm start, evaluation, checkpoints and run folders."""
