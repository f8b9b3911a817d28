#!/usr/bin/env bash
# The transformer and every architecture of this plugin, at matched size on one corpus: train all
# for the same number of updates, translate, and compare quality, size and speed.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source-path=SCRIPTDIR source=systems.sh
source "$(dirname "${BASH_SOURCE[0]}")/systems.sh"

models=()
for model in transformer gru linformer muse muse-simple bmt binary; do
    models+=("$model=${matched[$model]}")
done

usage() {
    cat <<'HELP'
Usage: bash recipes/compare_all.sh [OPTION]... [NAME]...

  NAME           transformer, gru, linformer, muse, muse-simple (no convolution), bmt (BMT-1),
                 binary (the transformer with 1-bit weights like BMT-1's)  (all)

  --tok          Multi30k's files as their authors tokenized them, not the raw ones
  --mirror M     folder or address with Multi30k's files raw/*.gz or, with --tok,
                 tok/*.lc.norm.tok.*
  --data DIR     your own text instead: train, valid and test, each with the endings .SRC and .TGT
  --src L, --tgt L  languages of your own text           (as its text.json says, or en, de)
  --tokenize     tokenize as Moses does, and undo it in translations (always so for Multi30k)
  --updates N    training updates of each model                      (6000)
  --bpe N        joint byte-pair merges                              (4000)
  --subwords K   kind of subwords (--bpe sets their number): bpe, sentencepiece-unigram,
                 sentencepiece-bpe, tokenizers; none: words          (bpe)
  --max-tokens N tokens in a batch                                   (2000)
  --lr X         peak learning rate                                  (0.002)
  --seeds N      trainings of each model, each with another seed; the table has a row for each
                 model                                               (1)
  --baseline NAME the system that the others are tested against      (transformer)
  --metric M     neural metric for the table: comet:MODEL, see `fairseq-ext compare --help`
  --out DIR      shared data, and a folder for each model            (runs/compare-all)
  --help         this text

The table (compare.md, .html, .json and .png) shows the models of this call, trained now or before.
SMOKE=1 runs every step at a tiny size on some of the shipped sentences; DRY_RUN=1 only prints the
commands. If stopped, the recipe continues when run again. OMP_NUM_THREADS is the number of CPU
threads (1).
HELP
}

corpus=multi30k mirror="" data="" src=en tgt=de tokenize="" updates=6000 bpe=4000 max_tokens=2000 lr=0.002
baseline="" metric="" out="" seeds=1 subwords=bpe

# read_options ARGUMENT...: sets the globals above.
read_options() {
    local languages="" word tok=""
    for word in "$@"; do
        [[ "$word" != --src && "$word" != --tgt ]] || languages="$word"
    done
    read_arguments "--mirror= --data= --src= --tgt= --updates= --bpe= --subwords= --max-tokens= --lr= \
        --seeds= --baseline= --metric= --out= --tok --tokenize WORD" "$@"
    [[ -z "$tok" ]] || corpus=multi30k_tok
    positive --updates --bpe --max-tokens --seeds
    check_subwords "$subwords"
    [[ -z "$metric" || "$metric" == comet:?* ]] ||
        die "\`--metric\` must be comet:MODEL, but is \`$metric\`."
    choose_models
    out="$(absolute "${out:-$REPO/runs/${SMOKE:+smoke-}compare-all}")"
    [[ -z "$mirror" || "$mirror" == *://* ]] || mirror="$(absolute "$mirror")"
    [[ -z "$languages" || -n "$data" || "${SMOKE:-0}" == 1 ]] ||
        die "\`$languages\` goes with \`--data\`, which is missing: Multi30k is English → German."
    if [[ -n "$data" && -z "$languages" && -s "$data/text.json" ]]; then # of the command that made the text
        src="$(sed -n 's/^ *"src": "\(.*\)".*/\1/p' "$data/text.json")"
        tgt="$(sed -n 's/^ *"tgt": "\(.*\)".*/\1/p' "$data/text.json")"
    fi
    [[ -z "$data" ]] || data="$(own_text --data "$data" "$src" "$tgt")"
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
}

# choose_models: checks the names on the command line, and leaves only these in `models`.
choose_models() {
    local name model all=" " chosen=()
    for model in "${models[@]}"; do all+="${model%%=*} "; done
    for name in "${operands[@]}"; do
        [[ "$all" == *" $name "* ]] || die "\`$name\` must be one of${all% }."
    done
    for model in "${models[@]}"; do
        if ((${#operands[@]} == 0)) || [[ " ${operands[*]} " == *" ${model%%=*} "* ]]; then
            chosen+=("$model")
        fi
    done
    models=("${chosen[@]}")
    baseline="${baseline:-${models[0]%%=*}}"
    [[ " ${models[*]%%=*} " == *" $baseline "* ]] ||
        die "\`--baseline\` must be one of the models, but is \`$baseline\`."
}

# find_text: sets `text`, the folder to train on; `ref` and `source`, the plain test text; and
# `tokens`, the flags that tell `fairseq-ext compare` how to treat tokens.
find_text() {
    tokens=()
    if [[ "${SMOKE:-0}" == 1 ]]; then
        text="$out.text"
        ref="$text/test.$tgt" source="$text/test.$src"
        [[ -d "$text" ]] || smoke_text "$src" "$tgt" 600 30 40 "$text"
    elif [[ -n "$data" ]]; then
        text="$data" ref="$data/test.$tgt" source="$data/test.$src"
        tokens=(--keep-tokens) # text that comes as tokens is compared as tokens
        [[ -z "$tokenize" ]] || tokens=(--detokenize "$tgt" --tokenized-ref "$out/text/test.$tgt")
    else
        text="$REPO/runs/data/$corpus-words/text"
        ref="${text%/text}/reference/test.de" source="${text%/text}/reference/test.en" tokenize="" src=en tgt=de
        run fairseq-ext corpus "$corpus" --bpe 0 --out "${text%/text}" \
            ${mirror:+--mirror "$mirror"}
        tokens=(--detokenize de --tokenized-ref "$text/test.de")
    fi
}

train_all() {
    local other=()
    [[ "$subwords" == bpe ]] || other=(--subwords "$subwords")
    run bash "$REPO/recipes/compare.sh" "$text" "$src" "$tgt" --updates "$updates" --bpe "$bpe" \
        --max-tokens "$max_tokens" --lr "$lr" --seeds "$seeds" --out "$out" --no-table ${tokenize:+"$tokenize"} \
        "${other[@]}" "${models[@]}"
}

compare_models() {
    local model folder files systems=() logs=() neural=()
    for model in "${models[@]}"; do
        folder="$out/models/${model%%=*}"
        files="$(outputs "$folder" "$seeds"),checkpoint=$folder/checkpoint_last.pt,log=$folder/train.log"
        systems+=(--system "${model%%=*}=$files")
        logs+=(--log "${model%%=*}=$folder/train.log")
    done
    run fairseq-ext plot curves "${logs[@]}" -o "$out/curves.png"
    [[ -z "$metric" ]] || neural=(--metric "$metric" --source "$source")
    run fairseq-ext compare "${systems[@]}" --baseline "$baseline" --ref "$ref" \
        "${tokens[@]}" "${neural[@]}" -o "$out/compare" --pictures "$out/curves.png"
    dry && return
    printf '\nEverything is in %s: compare.md with its picture, curves.png and the models\n' "$out"
    printf 'Translate a line of yours: echo … | fairseq-ext translate --path %q\n' "${folder#"$PWD"/}"
}

main() {
    [[ "${SMOKE:-0}" != 1 ]] || updates=20 bpe=400 max_tokens=1000
    read_options "$@"
    use_environment sacremoses subword_nmt
    # Otherwise a wrong name would be noticed only after all trainings.
    [[ -z "$metric" ]] || run python "$REPO/recipes/try_metric.py" "$metric"
    find_text
    train_all
    compare_models
}

main "$@"; exit
