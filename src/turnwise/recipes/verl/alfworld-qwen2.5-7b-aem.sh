#!/usr/bin/env bash
# AEM on ALFWorld with Qwen/Qwen2.5-7B-Instruct in verl: 16 groups x 8, 150 steps, history 2, lr 1e-6, KL 0.01.
#
# NOT RUN YET: verl's configuration code accepts it, and nobody has trained with it. Settings that AEM's paper does
# not state (lr, KL, clipping, lengths, mini-batch) are those of verl-agent's published scripts. A mini-batch is 128
# rows (verl: ppo_mini_batch_size x n) where verl-agent has 256: verl takes no more prompts than a batch has. Needs 4
# GPUs of 80 GB, verl 0.9, turnwise on every machine (`turnwise verl-check`), and ALFWORLD_DATA.
set -euo pipefail
cd "$(dirname "$0")"
python -m turnwise.integrations.verl_agent_loop alfworld-loop.yaml train.parquet --split train
python -m turnwise.integrations.verl_agent_loop alfworld-loop.yaml valid.parquet --split valid_seen

python -m verl.trainer.main_ppo \
  algorithm.adv_estimator=turnwise \
  +algorithm.turnwise.method=grpo+aem \
  +algorithm.turnwise.penalty=true \
  trainer.v1.trainer_mode=turnwise_sync \
  data.train_files="$PWD/train.parquet" \
  data.val_files="$PWD/valid.parquet" \
  data.train_batch_size=16 \
  data.max_prompt_length=2048 \
  data.max_response_length=512 \
  actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct \
  actor_rollout_ref.model.enable_gradient_checkpointing=true \
  actor_rollout_ref.actor.optim.lr=1e-6 \
  actor_rollout_ref.actor.ppo_mini_batch_size=16 \
  actor_rollout_ref.actor.use_dynamic_bsz=true \
  actor_rollout_ref.actor.ppo_max_token_len_per_gpu=24576 \
  actor_rollout_ref.actor.use_kl_loss=true \
  actor_rollout_ref.actor.kl_loss_coef=0.01 \
  actor_rollout_ref.actor.kl_loss_type=low_var_kl \
  actor_rollout_ref.actor.clip_ratio=0.2 \
  actor_rollout_ref.actor.entropy_coeff=0.001 \
  actor_rollout_ref.rollout.name=vllm \
  actor_rollout_ref.rollout.n=8 \
  actor_rollout_ref.rollout.temperature=1.0 \
  actor_rollout_ref.rollout.tensor_model_parallel_size=2 \
  actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \
  actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=true \
  actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=24576 \
  actor_rollout_ref.rollout.val_kwargs.do_sample=true \
  actor_rollout_ref.rollout.val_kwargs.temperature=0.4 \
  actor_rollout_ref.rollout.agent.agent_loop_config_path="$PWD/alfworld-loop.yaml" \
  actor_rollout_ref.ref.log_prob_use_dynamic_bsz=true \
  actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=24576 \
  algorithm.use_kl_in_reward=false \
  trainer.n_gpus_per_node=4 \
  trainer.nnodes=1 \
  trainer.total_epochs=1000 \
  trainer.total_training_steps=150 \
  trainer.test_freq=5 \
  trainer.save_freq=50 \
  trainer.project_name=turnwise \
  trainer.experiment_name=alfworld-qwen2.5-7b-aem \
  "$@"
