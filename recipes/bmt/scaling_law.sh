#!/usr/bin/env bash
# The scaling-law study of the BMT paper (section 4.2): encoder- and decoder-scaling models, in float
# and with binary weights, and the law that their losses follow.
# shellcheck disable=SC2329  # the functions are handed to `stage`
# shellcheck source-path=SCRIPTDIR source=../lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

usage() {
    cat <<'HELP'
Usage: bash recipes/bmt/scaling_law.sh DATA_DIR SRC TGT [OPTION]... [-- FAIRSEQ_TRAIN_FLAG...]

  DATA_DIR           train, valid and test, each with the endings .SRC and .TGT

  --depths LIST      layers of the side that grows   (6,8,10,12,14,18,22,26,30,36,42,48)
  --base N           layers of the other side                                        (6)
  --updates F,W      updates in float, then with binary weights         (50000,40000)
  --warmup N         updates at the start of each stage in which the rate rises   (4000)
  --lr X             peak learning rate of each stage                            (0.001)
  --arch A           architecture of the family of `bmt`                   (bmt_scaling)
  --bpe N            joint byte-pair merges                                      (32000)
  --subwords K       kind of subwords (--bpe sets their number): bpe,
                     sentencepiece-unigram, sentencepiece-bpe, tokenizers; none: words (bpe)
  --max-tokens N     tokens in a batch                                            (4096)
  --eval NAME=PREFIX one more evaluation set, PREFIX.SRC and PREFIX.TGT; repeat for more
  --sample N         training pairs on which the training loss is measured        (2000)
  --out DIR          shared data, and a folder for each model
                                                (runs/scaling-DATA_DIR-SRC-TGT)
  --help             this text
  -- FLAG...         more flags for fairseq-train, such as --update-freq 8 --fp16

Each model with binary weights starts from the float model of its size, which is its float stage;
the paper trains these two stages for 5 and 4 epochs. No label smoothing, no distillation, one
embedding table for both languages. Finished steps are not repeated. SMOKE=1 needs no DATA_DIR: it
runs every step on a tiny corpus with five sizes, whose losses follow no law. DRY_RUN=1 only prints
the commands.
HELP
}

depths=6,8,10,12,14,18,22,26,30,36,42,48 base=6 updates=50000,40000 warmup=4000 lr=0.001
arch=bmt_scaling bpe=32000 max_tokens=4096 sample=2000 out="" data="" src=en tgt=de subwords=bpe
names=() prefixes=() models=() tiny=()

# use_smoke_settings: makes every step run at a tiny size.
use_smoke_settings() {
    local side
    arch=bmt_tiny depths=1,2,3 base=1 updates=12,8 warmup=3 bpe=200 max_tokens=1000 sample=40
    for side in encoder decoder; do
        tiny+=("--$side-embed-dim" 16 "--$side-ffn-embed-dim" 32 "--$side-attention-heads" 2)
    done
    tiny+=(--share-all-embeddings)
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
}

read_options() {
    local option
    read_arguments "--depths= --base= --updates= --warmup= --lr= --arch= --bpe= --subwords= \
        --max-tokens= --sample= --out= WORD --" "$@"
    check_options
    name=scaling
    [[ "${SMOKE:-0}" != 1 ]] || name=smoke-scaling
    out="$(absolute "${out:-$REPO/runs/$name-$(basename "${data:-tatoeba}")-$src-$tgt}")"
}

# own_option --eval NAME=PREFIX: adds an evaluation set.
own_option() {
    [[ "$1" == --eval ]] || return 1
    needs_value "$1" "$@"
    local side="${2%%=*}"
    [[ "$2" == *=?* && "$side" =~ ^[A-Za-z0-9._-]+$ ]] ||
        die "\`--eval\` must be NAME=PREFIX, with letters, digits and ._- in NAME, but is \`$2\`."
    [[ ! "$side" =~ ^(train|valid|test|sample)$ ]] ||
        die "\`--eval $2\`: the name \`$side\` is taken; choose another."
    names+=("$side") prefixes+=("$(realpath -m "${2#*=}")")
}

check_options() {
    positive --base --warmup --bpe --max-tokens --sample
    check_subwords "$subwords"
    [[ "$depths" =~ ^[1-9][0-9]*(,[1-9][0-9]*)+$ ]] ||
        die "\`--depths\` must be numbers of layers like 6,8,10, but is \`$depths\`."
    [[ "$updates" =~ ^[1-9][0-9]*,[1-9][0-9]*$ ]] ||
        die "\`--updates\` must be two numbers of updates like 50000,40000, but is \`$updates\`."
    IFS=, read -r float weights <<<"$updates"
    IFS=, read -ra sizes <<<"$depths"
    if [[ "${SMOKE:-0}" == 1 && ${#operands[@]} == 0 ]]; then return; fi
    ((${#operands[@]} == 3)) || die "needs DATA_DIR, SRC and TGT; see --help."
    src="${operands[1]}" tgt="${operands[2]}"
    data="$(own_text DATA_DIR "${operands[0]}" "$src" "$tgt")"
}

# make_text: copies the corpus, and the sets of --eval beside the corpus's own.
make_text() {
    local side number
    if [[ -n "$data" ]]; then
        run fairseq-ext prepare --data "$data" --src "$src" --tgt "$tgt" --out text
    else
        smoke_text "$src" "$tgt" 300 30 30 text
    fi
    for side in "$src" "$tgt"; do
        for number in "${!names[@]}"; do
            run cp "${prefixes[number]}.$side" "text/${names[number]}.$side"
        done
    done
    split_into_subwords "$bpe" "$src" "$tgt" "$subwords"
}

# draw_sample: writes bpe/sample, pairs at equal distances in the training text.
draw_sample() {
    local side
    for side in "$src" "$tgt"; do
        into "bpe/sample.$side" awk -v wanted="$sample" \
            'NR == FNR { lines++; next } int(FNR * wanted / lines) != int((FNR - 1) * wanted / lines)' \
            "bpe/train.$side" "bpe/train.$side"
    done
}

# fairseq calls the sets test, test1, test2 …
binarize_all() {
    local name all=bpe/test,bpe/sample
    for name in "${names[@]}"; do all+=",bpe/$name"; done
    binarize bpe "$src" "$tgt" --joined-dictionary --testpref "$all"
}

# train_model FOLDER ENCODER DECODER PRESET UPDATES
train_model() {
    train "$1" --arch "$arch" --encoder-layers "$2" --decoder-layers "$3" --bmt-preset "$4" \
        --source-lang "$src" --target-lang "$tgt" --lr-scheduler staged_cosine \
        --stage-updates "$updates" --warmup-updates "$warmup" --lr "$lr" --max-update "$5" \
        --optimizer adam --adam-betas '(0.9, 0.98)' --criterion cross_entropy --dropout 0.1 \
        --max-tokens "$max_tokens" --seed 1 --num-workers 0 --log-interval 100 \
        --no-epoch-checkpoints --save-interval-updates "$((float > 2000 ? 2000 : float))" \
        --keep-interval-updates 1 "${tiny[@]}" "${extra[@]}"
}

# train_size ENCODER DECODER: trains both models of a size, the binary one from the float one.
train_size() {
    local name="$1L$2L"
    stage "float-$name" train_model "models/float-$name" "$1" "$2" float "$float"
    stage "begin-$name" begin_binary "$name"
    stage "binary-$name" train_model "models/binary-$name" "$1" "$2" bmt-1 $((float + weights))
    models+=("float=models/float-$name/checkpoint_last.pt"
        "binary=models/binary-$name/checkpoint_last.pt")
}

# begin_binary SIZE: copies the float model's checkpoint to where training looks for its own last one.
begin_binary() {
    run mkdir -p "models/binary-$1"
    run cp "models/float-$1/checkpoint_last.pt" "models/binary-$1/checkpoint_last.pt"
}

measure() {
    local number splits=(--split valid=valid --split test=test --split sample=test1)
    for number in "${!names[@]}"; do
        splits+=(--split "${names[number]}=test$((number + 2))")
    done
    run python "$REPO/recipes/bmt/scaling_losses.py" "${models[@]}" --data bin "${splits[@]}" \
        --train sample -o table.json
}

fit_law() {
    run fairseq-ext scaling-fit table.json --json fits.json -o scaling.png && return
    [[ "${SMOKE:-0}" == 1 ]] && log "the losses of a smoke run may well follow no law; the recipe goes on"
}

# Settings that must be equal for a run to be continued, one per line.
settings() {
    cat <<SETTINGS
base=$base
updates=$updates $warmup $lr
arch=$arch
bpe=$bpe$([[ "$subwords" == bpe ]] || printf '\nsubwords=%s' "$subwords")
max_tokens=$max_tokens
sample=$sample
sets=${names[*]} ${prefixes[*]}
flags=${tiny[*]} ${extra[*]}
data=$data $src $tgt
sums=$([[ -z "$data" ]] || cat "$data"/{train,valid,test}.{"$src","$tgt"} 2>/dev/null | cksum)
SETTINGS
}

main() {
    local depth
    [[ "${SMOKE:-0}" != 1 ]] || use_smoke_settings
    read_options "$@"
    use_environment scipy "${SUBWORDS[$subwords]}"
    open_run "$out" "$(settings)"
    stage corpus make_text
    stage sample draw_sample
    stage binarize binarize_all
    for depth in "${sizes[@]}"; do
        train_size "$depth" "$base"
        [[ "$depth" == "$base" ]] || train_size "$base" "$depth"
    done
    measure
    fit_law
    dry && exit
    printf '\nEverything is in %s: table.json, fits.json and scaling*.png\n' "$out"
}

main "$@"; exit
