#!/usr/bin/env bash
# torchrun under Slurm: sbatch examples/cluster/slurm.sh train.py …
# Slurm starts one torchrun per node, torchrun starts the ranks, and starts them again after a
# failure. The folder and the environment must be on all nodes.
#SBATCH --job-name=weft
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=01:00:00
#SBATCH --requeue
set -euo pipefail

if [[ $# == 0 ]]; then
  echo "usage: sbatch $0 PROGRAM [ARGUMENT]…" >&2
  exit 2
fi

read -r head < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
port=$((20000 + SLURM_JOB_ID % 10000)) # another one for each job that shares a node

# The group's key: who may join, and TLS between the nodes. 64 hexadecimal digits that only this
# user can read, on all nodes.
if [[ -z "${WEFT_AUTH_KEY_FILE:-}" ]]; then
  WEFT_AUTH_KEY_FILE="$PWD/.weft-key-$SLURM_JOB_ID"
  export WEFT_AUTH_KEY_FILE
  trap 'rm -f "$WEFT_AUTH_KEY_FILE"' EXIT
  (umask 077 && openssl rand -hex 32 >"$WEFT_AUTH_KEY_FILE")
fi

srun --kill-on-bad-exit=1 torchrun \
  --nnodes="$SLURM_NNODES" --nproc-per-node="${RANKS_PER_NODE:-2}" --max-restarts=3 \
  --rdzv-id="$SLURM_JOB_ID" --rdzv-backend=c10d --rdzv-endpoint="$head:$port" "$@"
