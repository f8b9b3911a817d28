#!/usr/bin/env bash
# Train the models that come with the plugin, side by side, in a given time.
#
#   es-en   MUSE, Spanish to English
#   en-es   MUSE, English to Spanish
#   bmt-1   BMT, Spanish to English: float for half of the time, then 1-bit weights, distilled from
#           the float model; larger than the shipped tatoeba-es-en-bmt-1, which tatoeba.sh made
#
# The learning rate falls to zero along a cosine that ends when the time is over
# (recipes/timed_cosine). OUT gets NAME.log and NAME.pt (the last checkpoint without optimizer state:
# some 20 MB).
# usage: shipped_train.sh BIN OUT SECONDS [NAME...]
#   BIN      has es-en/ and en-es/ of fairseq-preprocess
#   SECONDS  of training, to which the start of each process adds some 15 s (twice for bmt-1)
#   NAME     es-en, en-es or bmt-1 (all)
# Environment: MAX_TOKENS (12000 target tokens in a batch), PRECISION (--bf16 on a GPU), FLAGS
# (further flags of fairseq-train, such as --finetune-from-model with the other direction's weights).
set -euo pipefail

usage="usage: shipped_train.sh BIN OUT SECONDS [NAME...]"
bin=${1:?$usage} out=${2:?$usage} seconds=${3:?$usage}
names=("${@:4}")
((${#names[@]})) || names=(es-en en-es bmt-1)
for name in "${names[@]}"; do
    [[ "$name" =~ ^(es-en|en-es|bmt-1)$ ]] || {
        echo "\`$name\` is not a shipped model; es-en, en-es and bmt-1 are." >&2
        exit 2
    }
done
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export PYTHONPATH="$(dirname "$here")${PYTHONPATH:+:$PYTHONPATH}" PYTHONUTF8=1
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-4}" OMP_WAIT_POLICY=passive
max_tokens=${MAX_TOKENS:-12000}
if [[ -z "${PRECISION+set}" ]]; then
    PRECISION=$(python3 -c 'import torch; print("--bf16" if torch.cuda.is_available() else "")')
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"

# The bundles (in int8; bmt-1 in bits and int8) take 4.9, 4.9 and 2.0 MB with their dictionaries.
muse=(--arch muse_tiny --share-all-embeddings --encoder-layers 4 --decoder-layers 4
    --encoder-embed-dim 192 --decoder-embed-dim 192
    --encoder-attention-heads 4 --decoder-attention-heads 4
    --encoder-ffn-embed-dim 512 --decoder-ffn-embed-dim 512)
bmt=(--arch bmt_tiny --share-all-embeddings --encoder-layers 3 --decoder-layers 3
    --encoder-embed-dim 256 --decoder-embed-dim 256
    --encoder-attention-heads 4 --decoder-attention-heads 4
    --encoder-ffn-embed-dim 512 --decoder-ffn-embed-dim 512
    --attention-dropout 0 --activation-dropout 0)
smoothed=(--criterion label_smoothed_cross_entropy --label-smoothing 0.1)

# train NAME DIRECTION SECONDS FLAG...
train() {
    local name="$1" data="$bin/$2" time="$3"
    # shellcheck disable=SC2086  # none or several words
    fairseq-train "$data" --user-dir "$here/timed_cosine" --save-dir "$work/$name" \
        --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0 \
        --lr-scheduler timed_cosine --timed-seconds "$time" --timed-warmup 400 \
        --stop-time-hours "$(awk "BEGIN {print $time / 3600}")" --max-tokens "$max_tokens" \
        --no-epoch-checkpoints --no-save-optimizer-state --save-interval 100000 \
        --validate-interval 100000 \
        --num-workers 2 --seed 1 --log-interval 50 --log-format simple $PRECISION "${@:4}" ${FLAGS:-} \
        >>"$out/$name.log" 2>&1
}

# save NAME: copies the last checkpoint.
save() { cp "$work/$1/checkpoint_last.pt" "$out/$1.pt"; }

# train_muse DIRECTION
train_muse() {
    train "$1" "$1" "$seconds" "${muse[@]}" --lr 0.002 --dropout 0.3 "${smoothed[@]}"
    save "$1"
}

train_bmt() {
    local half=$(((seconds - 20 > 2 ? seconds - 20 : 2) / 2))
    train bmt es-en "$half" "${bmt[@]}" --bmt-preset float --lr 0.004 --dropout 0.2 "${smoothed[@]}"
    train bmt-1 es-en "$half" "${bmt[@]}" --bmt-preset bmt-1 --lr 0.004 --dropout 0.1 \
        --finetune-from-model "$work/bmt/checkpoint_last.pt" \
        --criterion distillation --teacher "$work/bmt/checkpoint_last.pt"
    save bmt-1
}

jobs=()
for name in "${names[@]}"; do
    if [[ "$name" == bmt-1 ]]; then train_bmt & else train_muse "$name" & fi
    jobs+=($!)
done
status=0
for job in "${jobs[@]}"; do wait "$job" || status=1; done
((status == 0)) || tail -n 5 "$out"/*.log >&2
ls -l "$out"
exit "$status"
