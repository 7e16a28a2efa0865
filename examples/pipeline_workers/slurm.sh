#!/usr/bin/env bash
# A program and its workers under Slurm: sbatch examples/pipeline_workers/slurm.sh train.py …
# The program is rank 0 and calls weft.init_rpc("driver"); the other tasks are worker1, worker2 …,
# which import what lies beside it. The folder and the environment must be on all nodes.
#SBATCH --job-name=weft-pipeline
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --time=01:00:00
set -euo pipefail

if [[ $# == 0 ]]; then
  echo "usage: sbatch $0 PROGRAM [ARGUMENT]…" >&2
  exit 2
fi

read -r MASTER_ADDR < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000)) # another one for each job that shares a node
WORLD_SIZE="$SLURM_NTASKS"
PYTHONPATH="$(cd "$(dirname "$1")" && pwd)${PYTHONPATH:+:$PYTHONPATH}"
export MASTER_ADDR MASTER_PORT WORLD_SIZE PYTHONPATH

# The group's key: 64 hexadecimal digits that only this user can read, on all nodes.
if [[ -z "${WEFT_AUTH_KEY_FILE:-}" ]]; then
  WEFT_AUTH_KEY_FILE="$PWD/.weft-key-$SLURM_JOB_ID"
  export WEFT_AUTH_KEY_FILE
  trap 'rm -f "$WEFT_AUTH_KEY_FILE"' EXIT
  (umask 077 && openssl rand -hex 32 >"$WEFT_AUTH_KEY_FILE")
fi

# A task that fails ends the others.
# shellcheck disable=SC2016  # for the task's shell
srun --kill-on-bad-exit=1 bash -c '
  export RANK="$SLURM_PROCID"
  if [[ "$RANK" == 0 ]]; then exec python "$@"; fi
  exec python -m weft.worker
' task "$@"
