#!/usr/bin/env bash
# A comparison on every GPU of four nodes, a run on each: `sbatch examples/slurm.sh` in a checkout that
# all nodes see. Ray gives the runs to the nodes. Before its time is up, or when it is preempted, every
# run saves; after preemption SLURM queues it again; else the same command continues it.
#SBATCH --job-name=pe_jax
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=08:00:00
#SBATCH --signal=TERM@300
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

make .venv/ready-cuda .venv/ready-cluster
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun .venv/bin/ray symmetric-run --address "$head:6379" --min-nodes "$SLURM_JOB_NUM_NODES" -- \
  .venv/bin/python -m experiments.compare --config=configs/compare.py --config.cluster=ray \
  --config.workdir=runs/slurm
