# shellcheck shell=bash
# Train on translations that a model has written: the code that back_translation.sh and
# sequence_distillation.sh share. A script sources this file, which takes its options and stages from
# official.sh, and calls `begin "$@"`.
#
#     systems     folders of the run, each with bin/, checkpoints/ and generated.txt
#     synthetic/  translations in parts; other machines may do some of them, see docs/scale.md
# shellcheck disable=SC2034,SC2329  # official.sh uses them; `stage` calls the functions
# shellcheck source-path=SCRIPTDIR source=official.sh
source "$(dirname "${BASH_SOURCE[0]}")/official.sh"
# shellcheck source-path=SCRIPTDIR source=systems.sh
source "$(dirname "${BASH_SOURCE[0]}")/systems.sh"

# Multi30k, as in multi30k.sh; --corpus takes another one of the catalogue, or a folder.
corpus=multi30k src=en tgt=de
arch=transformer dropout=0.3
dictionary=(--joined-dictionary)
max_tokens=4096 update_freq=1 updates=8000 warmup=2000 lr=0.005
average=10 beam=5 averaged="N checkpoints of the last quarter of the updates"
read -ra tiny_flags <<<"$tiny"
flags=(--clip-norm 1.0)

part_lines=10000 longest=250 ratio=3 pairs_folder="" sums="" rest=()

# synthetic_usage: help on the options that both recipes have.
synthetic_usage() {
    cat <<HELP
  --corpus C       name of a corpus of \`fairseq-ext corpus\`, or folder of your own text: train,
                   valid and test, each with the endings .SRC and .TGT  ($corpus)
  --src L, --tgt L languages of the corpus, in either direction    ($src, $tgt)
  --part-lines N   lines to translate at a time; finished parts survive a stop  ($part_lines)
  --longest N      leave out pairs with more than N tokens on a side  ($longest)
  --ratio R        leave out pairs with one side more than R times as long as the other  ($ratio)

and the options of the training, the same for all systems of the run. The transformer is of
tiny size. With \`--corpus FOLDER\`, \`--bpe\` is 8000:

$(training_usage)

SMOKE=1 needs no files and takes a tiny corpus of the shipped sentences. DRY_RUN=1 only prints the
commands. If stopped, the recipe continues when run again: translations after their last part.
HELP
}

# begin NAME ARGUMENT...: reads the options and opens the run NAME. The script defines three functions:
# `own_option OPTION VALUE` reads an option of its own, `check_own` checks these options, and
# `own_settings` prints the settings that a continued run must share besides the common ones.
begin() {
    local run_name="$1"
    shift
    ((NODES == 1)) ||
        die "this recipe trains on one node, so \`NODES\` must be 1; other machines may only translate parts."
    [[ "${SMOKE:-0}" != 1 ]] || use_smoke_settings
    [[ "${SMOKE:-0}" != 1 ]] || part_lines=50
    rest=(--out "$REPO/runs/${SMOKE:+smoke-}$run_name")
    while (($#)); do
        case "$1" in
        --) rest+=("$@") && break ;;
        --corpus | --src | --tgt | --part-lines | --longest | --ratio) set_option "$@" && shift ;;
        --against) die "\`--against\` is not an option; --help lists them." ;;
        *) if own_option "$@"; then shift; else rest+=("$1"); fi ;;
        esac
        shift
    done
    positive --part-lines --longest
    [[ "$ratio" =~ ^[1-9][0-9]*(\.[0-9]+)?$ ]] || die "\`--ratio\` must be at least 1, but is \`$ratio\`."
    [[ "$src" != "$tgt" ]] || die "\`--src\` and \`--tgt\` are both \`$src\`; choose two languages."
    check_own
    if [[ "$corpus" == */* || -d "$corpus" ]]; then
        pairs_folder="$(own_text --corpus "$corpus" "$src" "$tgt")"
        corpus="$(basename "$pairs_folder")" bpe=8000
        dry || sums="$(cat "$pairs_folder"/{train,valid,test}.{"$src","$tgt"} | cksum)"
    fi
    read_options "${rest[@]}"
    [[ -z "$pairs_folder" || " ${rest[*]} " == *" --data "* ]] || data="$out/data"
    ((4 * average <= updates)) ||
        die "\`--average\` must be at most a quarter of the $updates updates, but is $average."
    inverse_sqrt
    # The corpora differ in size, and so an epoch does: the last ten epochs may be the end of one
    # training and nearly all of another. So checkpoints are written and averaged by updates.
    flags+=(--no-epoch-checkpoints --keep-interval-updates "$average"
        --save-interval-updates "$((updates / (4 * average)))")
    if [[ "$arch" == transformer ]]; then
        flags+=("${tiny_flags[@]}")
    else
        flags+=(--share-all-embeddings)
    fi
    use_environment sacremoses subword_nmt
    open_run "$out" "$(settings)
$(printf 'corpus=%s %s %s\npart_lines=%s\nlimits=%s %s\n' \
        "${pairs_folder:-$corpus}${sums:+ $sums}" "$src" "$tgt" "$part_lines" "$longest" "$ratio")
$(own_settings)"
    stage corpus prepare_corpus
}

prepare_corpus() {
    if [[ -z "$pairs_folder" ]]; then
        prepare_official
        return
    fi
    run mkdir -p "$data"
    run fairseq-ext prepare --data "$pairs_folder" --src "$src" --tgt "$tgt" --tokenize -o "$data/text"
    [[ "$bpe" == 0 ]] || run fairseq-ext subwords "$data/text" --src "$src" --tgt "$tgt" \
        ${other_subwords:+--kind "$other_subwords"} --size "$bpe" -o "$data/bpe"
    run ln -sfn "$pairs_folder" "$data/reference"
    link_corpus
}

# inside FOLDER COMMAND...: runs the command in a folder of the run.
inside() {
    local folder="$1"
    shift
    run mkdir -p "$folder"
    show cd "$folder"
    if dry; then "$@"; else (cd "$folder" && "$@"); fi
    show cd ..
}

# set_model OPTION VALUE: sets `model` to the path or name of a bundle.
set_model() {
    needs_value "$1" "$@"
    model="$2"
    [[ ! -e "$model" ]] || model="$(absolute "$model")"
}

# backwards COMMAND...: runs the command with the languages exchanged.
backwards() {
    local one="$src"
    local src="$tgt"
    local tgt="$one"
    "$@"
}

binarize_text() { binarize "$1" "$src" "$tgt" "${dictionary[@]}"; }

# system NAME TEXT [COMMAND]: trains a system on a folder of text, each step through COMMAND if given.
system() {
    local through=() folder="$1"
    [[ -z "${3:-}" ]] || through=("$3")
    stage "$folder-data" "${through[@]}" inside "$folder" binarize_text "../$2"
    stage "$folder-train" "${through[@]}" inside "$folder" train_model
    stage "$folder-average" inside "$folder" average_updates
}

average_updates() {
    # A tiny corpus may have none: fairseq writes them within an epoch, and its epochs have one update.
    if ((average == 1)) || { ! dry && [[ -z "$(find checkpoints -name 'checkpoint_*_*.pt')" ]]; }; then
        run cp checkpoints/checkpoint_last.pt checkpoints/average.pt
    else
        run fairseq-ext average --dir checkpoints --last-updates "$average" -o checkpoints/average.pt
    fi
}

# write_synthetic SYSTEM INPUT OUTPUT FLAG...: translates text in parts, by the bundle that an option
# named (`model`) or else by a system of the run.
model=""
write_synthetic() {
    local who=("$1/bin" --path "$1/checkpoints/average.pt")
    [[ -z "$model" ]] || who=(--model "$model")
    run fairseq-ext translate "${who[@]}" --input "$2" -o "$3" \
        --parts synthetic --part-lines "$part_lines" --skip-long --max-len-a 1.5 --max-len-b 10 "${@:4}"
}

# mix_synthetic DATA SOURCE TARGET FLAG...: makes the corpus mixed/ of DATA and the synthetic pairs.
mix_synthetic() {
    run fairseq-ext corpus mix --data "$1" --src "$src" --tgt "$tgt" --source "$2" \
        --target "$3" --longest "$longest" --ratio "$ratio" --out mixed "${@:4}"
}

# compare_systems BASELINE OTHER...: translates the test set with each, and compares.
compare_systems() {
    local name systems=()
    for name in "$@"; do
        stage "$name-test" inside "$name" translate
        systems+=(--system
            "$name=$name/generated.txt,checkpoint=$name/checkpoints/average.pt,log=$name/checkpoints/train.log")
    done
    stage compare run fairseq-ext compare "${systems[@]}" --ref "reference/test.$tgt" \
        --detokenize "$tgt" -o compare
    dry || printf '\nEverything is in %s: compare.md with its picture, mixed/synthetic.json\n' "$out"
}
