#!/usr/bin/env bash
# Any recipe on one or several nodes of a Slurm cluster, from the clone, without editing either:
#
#     sbatch --nodes 2 --gpus-per-node 4 recipes/slurm.sh recipes/muse/wmt14_en_de.sh --out runs/big
#
# The first node runs the recipe; its trainings run on all of them (see launch.sh). What is stopped by
# the time limit goes on when the same command is submitted again.
#SBATCH --job-name=fairseq-ext
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --output=%x-%j.log
set -euo pipefail

if [[ -z "${SLURM_JOB_ID:-}" || $# == 0 ]]; then
    echo "slurm.sh: error: use it as: sbatch [OPTION]... recipes/slurm.sh RECIPE [OPTION]..." >&2
    exit 1
fi

NODES="${SLURM_JOB_NUM_NODES:-1}"
GPUS="${SLURM_GPUS_ON_NODE:-1}"
export NODES GPUS
if ((NODES > 1)); then
    read -r first < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    export RENDEZVOUS="$first:$((20000 + SLURM_JOB_ID % 20000))" # a port of this job's own
    export LAUNCH="srun --nodes=$NODES --ntasks=$NODES --ntasks-per-node=1 --kill-on-bad-exit=1"
fi
exec bash "$@"
