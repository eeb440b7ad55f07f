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
#SBATCH --signal=B:TERM@300
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

make .venv/ready-cuda .venv/ready-cluster
export PATH=$PWD/.venv/bin:$PATH RAY_ADDRESS=$(hostname):6379
srun --overlap bash -c 'if [ "$SLURM_NODEID" = 0 ]; then ray start --head --port=6379 --block
  else until ray start --address="$RAY_ADDRESS" --block; do sleep 2; done; fi' &
until [ "$(ray status 2>/dev/null | grep -c " node_")" -ge "$SLURM_JOB_NUM_NODES" ]; do sleep 2; done
# In the place of this shell, which alone gets the signal: the nodes go on until all has been saved.
exec python -m experiments.compare --config=configs/compare.py --config.cluster=ray \
  --config.workdir=runs/slurm
