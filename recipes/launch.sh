# shellcheck shell=bash
# Training on several GPUs and nodes, for lib.sh's `train`. No recipe is edited; the environment says
# where it runs:
#
#     GPUS=4              processes on each node, one for each GPU (or on CPUs, where there is none)
#     NODES=2             nodes, which share a file system
#     RENDEZVOUS=HOST:PORT  of the first node, where all of them meet
#     JOIN=1              on every other node, which runs the same command: only take part in training
#     LAUNCH="srun ..."   instead of JOIN, the command that starts a program on each node (slurm.sh)
#     RESTARTS=3          times that torchrun starts all processes again after one has died; they go
#                         on from the last checkpoint (0)
#
# An update has as many tokens as on one GPU, so that the recipe stays the same: --update-freq is
# divided by the number of processes as far as possible, and the batch by the remaining factor.

GPUS="${GPUS:-1}" NODES="${NODES:-1}" RESTARTS="${RESTARTS:-0}"

joining() { [[ "${JOIN:-0}" == 1 ]]; }

check_launch() {
    positive GPUS NODES
    [[ "$RESTARTS" =~ ^[0-9]{1,4}$ ]] ||
        die "\`RESTARTS\` must be a whole number, but is \`$RESTARTS\`."
    if ((NODES > 1)); then
        [[ "${RENDEZVOUS:-}" =~ ^[^:]+:[0-9]+$ ]] ||
            die "\`RENDEZVOUS\` must be HOST:PORT of the first of $NODES nodes, but is \`${RENDEZVOUS:-}\`."
    elif joining; then
        die "\`JOIN=1\` must come with the \`NODES\`, \`GPUS\` and \`RENDEZVOUS\` of the first node."
    fi
}

# choose_launcher FOLDER: sets `launcher`, the words before fairseq-train; none for one process.
# FOLDER names the training, so that no process joins another training.
choose_launcher() {
    launcher=()
    ((GPUS * NODES > 1)) || return 0
    if ((NODES > 1)); then
        read -ra launcher <<<"${LAUNCH:-}"
        launcher+=(torchrun --nnodes "$NODES" --rdzv-backend c10d --rdzv-endpoint "$RENDEZVOUS"
            --rdzv-id "${1//\//-}")
    else
        launcher=(torchrun --standalone)
    fi
    if ((RESTARTS)); then
        launcher+=(--max-restarts "$RESTARTS")
        # Otherwise all starts share torchrun's own store, and the processes of the second start find
        # the addresses that the processes of the first start left there.
        export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
    fi
    launcher+=(--nproc-per-node "$GPUS" --no-python)
}

# spread_update FLAG...: sets `spread` to flags with which all processes together make the same
# update as one process with the given flags.
spread_update() {
    local word at="" index left=$((GPUS * NODES))
    spread=()
    for word in "$@"; do
        case "$word" in
        --update-freq=* | --batch-size=* | --max-tokens=*) spread+=("${word%%=*}" "${word#*=}") ;;
        *) spread+=("$word") ;;
        esac
    done
    ((left > 1)) || return 0
    for index in "${!spread[@]}"; do
        [[ "${spread[index]}" != --update-freq ]] || at=$((index + 1)) # the last one counts
    done
    if [[ -n "$at" ]]; then
        index="$(common_divisor "${spread[at]}" "$left")"
        spread[at]=$((spread[at] / index))
        left=$((left / index))
    fi
    ((left == 1)) || divide_batch "$left"
}

# divide_batch N: makes the batches in `spread` N times as small.
divide_batch() {
    local index
    for index in "${!spread[@]}"; do
        case "${spread[index]}" in
        --batch-size)
            ((spread[index + 1] % $1 == 0)) ||
                die "$((GPUS * NODES)) processes must share a batch of ${spread[index + 1]} sentences," \
                    "which cannot be divided by $1; choose another \`GPUS\`, or another batch."
            ;;
        --max-tokens) ;;
        *) continue ;;
        esac
        spread[index + 1]=$((spread[index + 1] / $1))
    done
}

common_divisor() { if (($2 == 0)); then echo "$1"; else common_divisor "$2" $(($1 % $2)); fi; }

# ---- a node that joins ---------------------------------------------------------------------------

# join_run OUT SETTINGS: enters the folder as soon as the first node has opened this run there.
join_run() {
    until [[ "$(cat "$1/settings.txt" 2>/dev/null)" == "$2" && -d "$1/.stages" ]]; do
        log "waiting for the first node to begin $1"
        sleep 5
    done
    cd "$1" || die "\`$1\` cannot be entered."
}

# join_stage NAME COMMAND...: takes part in trainings, and waits until the first node has finished
# the other stages. After the last training the node leaves.
join_stage() {
    local name="$1"
    shift
    if [[ "$name" == train || "$name" == teacher ]]; then
        dry || [[ ! -e "$STAGES/$name" ]] || set -- log "$name: done before"
        "$@"
        [[ "$name" != train ]] || exit 0
        return
    fi
    dry && return
    until [[ -e "$STAGES/$name" ]]; do sleep 1; done
}
