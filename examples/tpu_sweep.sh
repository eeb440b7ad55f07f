#!/usr/bin/env bash
# A comparison on every core of a TPU slice, a run on each, from your own machine:
#
#     TPU=my-v5e-64 ZONE=us-central1-a bash examples/tpu_sweep.sh rope alibi 't5+rope'
#
# The slice's VMs have a checkout in ~/pe_jax and see one file system at SHARED (/shared). Ray gives the
# runs to the VMs. After an interruption call it again: finished runs are not repeated.
set -euo pipefail

SHARED=${SHARED:-/shared}
encodings=$(printf -- " --encodings='%s'" "$@")
gcloud compute tpus tpu-vm ssh "$TPU" --zone="$ZONE" --worker=all --command="cd pe_jax && \
  make .venv/ready-tpu .venv/ready-cluster && \
  head=\$(curl -s -H Metadata-Flavor:Google \
    http://metadata/computeMetadata/v1/instance/attributes/worker-network-endpoints \
    | cut -d, -f1 | cut -d: -f3) && \
  .venv/bin/ray symmetric-run --address \$head:6379 -- \
  .venv/bin/python -m experiments.compare --config=configs/compare.py --config.cluster=ray \
  --config.workdir='$SHARED/sweep'$encodings"
