#!/usr/bin/env bash
# Run any recipe on one or several nodes of a Slurm cluster, from the clone; nothing needs editing:
#
#     sbatch --nodes 2 --gpus-per-node 4 recipes/slurm.sh recipes/muse/wmt14_en_de.sh --out runs/big
#
# The first node runs the recipe; its trainings run on all of them (see launch.sh). Two minutes before
# the time limit the job is queued again, and continues from the last checkpoint. If a process dies,
# torchrun starts the whole training again from there, up to RESTARTS times (3).
#SBATCH --job-name=fairseq-ext
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@120
set -euo pipefail

if [[ -z "${SLURM_JOB_ID:-}" || $# == 0 ]]; then
    echo "slurm.sh: error: use it as: sbatch [OPTION]... recipes/slurm.sh RECIPE [OPTION]..." >&2
    exit 1
fi

NODES="${SLURM_JOB_NUM_NODES:-1}"
GPUS="${SLURM_GPUS_ON_NODE:-1}"
export NODES GPUS RESTARTS="${RESTARTS:-3}"
if ((NODES > 1)); then
    read -r first < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    export RENDEZVOUS="$first:$((20000 + SLURM_JOB_ID % 20000))" # a port of this job's own
    export LAUNCH="srun --nodes=$NODES --ntasks=$NODES --ntasks-per-node=1 --kill-on-bad-exit=1"
fi

# Slurm ends all processes of a job that it queues again; if it cannot, the job just goes on.
again() {
    signalled=1
    echo "slurm.sh: the time limit is near; job $SLURM_JOB_ID is queued again" >&2
    scontrol requeue "$SLURM_JOB_ID" || echo "slurm.sh: the job could not be queued again; submit it again" >&2
}
stop() {
    signalled=1
    kill -TERM "$recipe"
}
bash "$@" &
recipe=$!
trap again USR1
trap stop TERM
status=0 signalled=1
while ((signalled)); do # a signal ends `wait`, not the recipe
    signalled=0 status=0
    wait "$recipe" || status=$?
done
exit "$status"
