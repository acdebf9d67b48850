#!/usr/bin/env bash
# AEM on software repair with Qwen/Qwen3-32B in verl: 64 groups x 8, 250 steps, binary reward, 2x oversampling with
# uniform groups rejected.
#
# NOT RUN YET: verl's configuration code accepts it, and nobody has trained with it. The paper trained in rLLM, on
# DeepSWE's recipe; what is stated there is kept: Qwen3-32B, R2E-Gym's tasks, groups of 8, batches of 64, twice as
# many tried with those rejected that are all solved or all not, a reward of 0 or 1, long context, and DeepSWE's
# GRPO++ (advantage over the others' mean without the deviation, upper clip 0.28, loss over a constant length, no KL,
# no entropy bonus). Learning rate, mini-batch and parallelism are ours. The tools are turnwise's, not R2E-Gym's, so
# that scores are not DeepSWE's. Needs 8 machines of 8 GPUs of 141 GB with docker, verl 0.9, turnwise on every machine
# (`turnwise verl-check`), and two folders with a tasks.jsonl each: SWE_TRAIN (R2E-Gym) and SWE_EVAL
# (SWE-bench-Verified).
set -euo pipefail
cd "$(dirname "$0")"
python -m turnwise.integrations.verl_agent_loop swe-loop.yaml train.parquet --split all
python -m turnwise.integrations.verl_agent_loop swe-loop.yaml valid.parquet --split all --name turnwise_eval

python -m verl.trainer.main_ppo \
  algorithm.adv_estimator=turnwise \
  +algorithm.turnwise.method=rloo+aem \
  algorithm.filter_groups.enable=true \
  algorithm.filter_groups.metric=reward \
  algorithm.filter_groups.max_inflight_gen_batches=2 \
  trainer.v1.trainer_mode=turnwise_sync \
  data.train_files="$PWD/train.parquet" \
  data.val_files="$PWD/valid.parquet" \
  data.train_batch_size=64 \
  data.max_prompt_length=4096 \
  data.max_response_length=61440 \
  actor_rollout_ref.model.path=Qwen/Qwen3-32B \
  actor_rollout_ref.model.enable_gradient_checkpointing=true \
  actor_rollout_ref.actor.optim.lr=1e-6 \
  actor_rollout_ref.actor.ppo_mini_batch_size=64 \
  actor_rollout_ref.actor.use_dynamic_bsz=true \
  actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384 \
  actor_rollout_ref.actor.ulysses_sequence_parallel_size=8 \
  actor_rollout_ref.actor.use_kl_loss=false \
  actor_rollout_ref.actor.clip_ratio_low=0.2 \
  actor_rollout_ref.actor.clip_ratio_high=0.28 \
  actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm \
  actor_rollout_ref.actor.entropy_coeff=0 \
  actor_rollout_ref.rollout.name=vllm \
  actor_rollout_ref.rollout.n=8 \
  actor_rollout_ref.rollout.temperature=1.0 \
  actor_rollout_ref.rollout.tensor_model_parallel_size=8 \
  actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \
  actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=true \
  actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=16384 \
  actor_rollout_ref.rollout.val_kwargs.do_sample=true \
  actor_rollout_ref.rollout.val_kwargs.temperature=1.0 \
  actor_rollout_ref.rollout.agent.agent_loop_config_path="$PWD/swe-loop.yaml" \
  algorithm.use_kl_in_reward=false \
  trainer.n_gpus_per_node=8 \
  trainer.nnodes=8 \
  trainer.total_epochs=1000 \
  trainer.total_training_steps=250 \
  trainer.test_freq=25 \
  trainer.save_freq=25 \
  trainer.project_name=turnwise \
  trainer.experiment_name=swe-qwen3-32b-aem \
  "$@"
