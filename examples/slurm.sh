#!/usr/bin/env bash
# One training run on 8 GPUs of one node: `sbatch examples/slurm.sh` in a checkout that the node sees.
# More nodes: --nodes=4 gives 32. Before its time is up, or when it is preempted, the run saves. After
# preemption SLURM queues it again; else the same command continues it.
#SBATCH --job-name=pe_jax
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --time=08:00:00
#SBATCH --signal=TERM@300
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

make .venv/ready-cuda
srun .venv/bin/python -m experiments.train --config=configs/train.py --encoding=rope \
  --config.mesh.data=1 --config.mesh.fsdp=-1 --config.batch=64 --config.workdir=runs/slurm
