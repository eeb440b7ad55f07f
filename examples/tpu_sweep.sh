#!/usr/bin/env bash
# Encodings in turn on all chips of a TPU slice, from your own machine:
#
#     TPU=my-v5e-64 ZONE=us-central1-a bash examples/tpu_sweep.sh rope alibi 't5+rope'
#
# The slice's VMs have a checkout in ~/pe_jax and see one file system at SHARED (/shared). Runs that
# are finished do nothing, and others continue: after an interruption call it again.
set -euo pipefail

SHARED=${SHARED:-/shared}
for encoding in "$@"; do
  gcloud compute tpus tpu-vm ssh "$TPU" --zone="$ZONE" --worker=all --command="cd pe_jax && \
    make .venv/ready-tpu && .venv/bin/python -m experiments.train --config=configs/train.py \
    --encoding='$encoding' --config.mesh.data=-1 --config.batch=256 \
    --config.workdir='$SHARED/sweep/$encoding'"
done
