#!/usr/bin/env bash
# Multi30k, English → German: every system at matched size, trained until its validation loss has
# stopped falling, in one table.
#
#   corpus       the official lower-cased tokens; 10,000 joint merges; tests of 2016 and, where their
#                files are to be had, of 2017 (Flickr and COCO), which nothing is tuned on
#   rates        each system is trained with the same three rates; the one with the lowest validation
#                loss after 2,000 updates goes on where it is. Further seeds take it over
#   end          10 validations (epochs) without a gain, or --updates
#   translation  average of the last 10 epochs, beam 5
#   binary       a binary system goes on from its float one, which is the paper's first stage: bmt-1
#                from bmt, bmt-6 (the third stage) from bmt-1. Both are distilled from bmt
# shellcheck disable=SC2034,SC2317,SC2329  # official.sh uses the variables; `stage` calls functions
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=official.sh
source "$(dirname "${BASH_SOURCE[0]}")/official.sh" # its corpus, training and translation
# shellcheck source-path=SCRIPTDIR source=systems.sh
source "$(dirname "${BASH_SOURCE[0]}")/systems.sh"

corpus=multi30k_tok src=en tgt=de
dictionary=(--joined-dictionary)
patience=10 average=10 beam=5 buckets=8,12,16,20 grid=2000 half=--bf16
flags=(--clip-norm 1.0 --patience "$patience")
tests=(test test_2017_flickr test_2017_mscoco) # the first is that of 2016

# In order; bmt comes early because bmt-1 waits for it. NAME@S is another seed.
group_1=(transformer muse bmt muse-simple linformer-32 linformer-8 gru bmt-1)
group_2=(bmt-6 bmt-1-plain binary transformer@2 muse@2 transformer@3 muse@3)
group_3=({muse-simple,linformer-32,linformer-8,gru,bmt,bmt-1,bmt-6,bmt-1-plain,binary}@{2,3}
    binary-muse binary-linformer)

usage() {
    cat <<HELP
Usage: bash recipes/multi30k_all.sh [OPTION]... [NAME]...

  NAME             system, or NAME@SEED for another seed; it brings along what it needs  (all)
                     1: ${group_1[*]}
                     2: ${group_2[*]}
                     3: seeds 2 and 3 of the rest, binary-muse, binary-linformer
  --group N        the systems of that line; may be repeated

  --device D       cpu or gpu                                  (gpu where there is one)
  --jobs N         trainings at once, one thread each on a CPU (cores; 1 on a GPU)
  --rates A,B,C    peak learning rates that each system tries  (0.001,0.002,0.004; on a GPU
                                                               0.0025,0.005,0.01)
  --updates N      the longest training                        (30000; 8000 on a GPU)
  --mirror M       folder or address with the files of github.com/multi30k/dataset, data/task1/tok
  --data DIR       the corpus, prepared there once             (runs/data/$corpus)
  --out DIR        where everything goes                       (runs/multi30k-all)
  --help           this text

An update has 1,000 tokens on a CPU, 8,192 on a GPU (two batches, bf16). Ctrl-C stops all trainings,
and the same command continues them. The tables show every system that is finished in --out.
SMOKE=1 needs no files: every step, tiny, with two or three systems. DRY_RUN=1 only prints the
commands, as if the first rate were the best.
HELP
}

use_smoke_settings() {
    smoke=1 grid=4 average=2 tests=(test test_2017_flickr)
    ((${#names[@]})) || names=(bmt-1 bmt@2)
    rates="${rates:-0.001,0.002}" updates="${updates:-16}"
}

names=() rates="" updates="" jobs="" device="" smoke=0
read_options() {
    while (($#)); do
        case "$1" in
        --device | --jobs | --rates | --updates | --mirror | --data | --out)
            set_option "$@"
            shift
            ;;
        --group)
            needs_value "$1" "$@"
            [[ "$2" =~ ^[123]$ ]] || die "\`--group\` must be 1, 2 or 3, but is \`$2\`."
            local -n group="group_$2"
            names+=("${group[@]}")
            shift
            ;;
        --help | -h) usage && exit ;;
        -*) die "\`$1\` is not an option; --help lists them." ;;
        *) names+=("$1") ;;
        esac
        shift
    done
    [[ "${SMOKE:-0}" != 1 ]] || use_smoke_settings
    ((${#names[@]})) || names=("${group_1[@]}" "${group_2[@]}" "${group_3[@]}")
    check_options
    name="multi30k-all"
    ((smoke == 0)) || name="smoke-$name"
    out="$(absolute "${out:-$REPO/runs/$name}")"
    data="$(absolute "${data:-$REPO/runs/data/$corpus}")"
    [[ -z "$mirror" || "$mirror" == *://* ]] || mirror="$(absolute "$mirror")"
}

check_options() {
    local name known=" ${group_1[*]} ${group_2[*]} ${group_3[*]} "
    for name in "${names[@]}"; do
        [[ "$known" == *" ${name%@*} "* && "$name" =~ ^[^@]+(@[1-9][0-9]{0,3})?$ ]] ||
            die "\`$name\` must be a system, or one with @SEED, but is not; --help lists them."
    done
    ((NODES == 1)) || die "this recipe uses one node; \`NODES\` must be 1."
    [[ "$device" =~ ^(|cpu|gpu)$ ]] || die "\`--device\` must be cpu or gpu, but is \`$device\`."
    [[ "${rates:-1}" =~ ^[0-9.e-]+(,[0-9.e-]+)*$ ]] ||
        die "\`--rates\` must be numbers like 0.001,0.002,0.004, but is \`$rates\`."
    [[ -z "$jobs" ]] || positive --jobs "$jobs"
    [[ -z "$updates" ]] || positive --updates "$updates"
}

# choose_device: with the settings that depend on it, where no option has given them.
choose_device() {
    if [[ -z "$device" ]]; then
        device=cpu
        dry || device="$(python -c 'import torch
print("gpu" if torch.cuda.is_available() else "cpu")')"
    fi
    if [[ "$device" == gpu ]]; then
        max_tokens=4096 update_freq=2 warmup=2000
        rates="${rates:-0.0025,0.005,0.01}" updates="${updates:-8000}" jobs="${jobs:-1}"
    else
        export CUDA_VISIBLE_DEVICES=""
        max_tokens=1000 update_freq=1 warmup=1000
        rates="${rates:-0.001,0.002,0.004}" updates="${updates:-30000}" jobs="${jobs:-$(env -u OMP_NUM_THREADS nproc)}"
    fi
    ((smoke == 0)) || max_tokens=3000 update_freq=1 warmup=4 bpe=400
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
    read -ra rates <<<"${rates//,/ }"
    inverse_sqrt
}

on_gpu() { [[ "$device" == gpu ]]; }

# ---- the systems ---------------------------------------------------------------------------------

# describe NAME[@SEED]: sets what its training needs, also `parent`, the system that it starts from.
describe() {
    local words distilled=0
    system="${1%@*}" seed=1 parent="" dropout=0.3
    [[ "$1" != *@* ]] || seed="${1#*@}"
    case "$system" in
    linformer-*) words="${matched[linformer]} --linformer-k ${system#*-}" ;;
    bmt) words="${matched[bmt]} --bmt-preset float" ;;
    bmt-1) words="${matched[bmt]} --bmt-preset bmt-1" parent=bmt distilled=1 ;;
    bmt-1-plain) words="${matched[bmt]} --bmt-preset bmt-1" parent=bmt ;;
    bmt-6) words="${matched[bmt]} --bmt-preset bmt-6" parent=bmt-1 distilled=1 ;;
    binary) words="${matched[binary]}" parent=transformer ;;
    binary-muse) words="${matched[muse]} --binary-weights qkv,out,ffn" parent=muse ;;
    binary-linformer) words="${matched[linformer]} --binary-weights qkv,out,ffn" parent=linformer-32 ;;
    *) words="${matched[$system]}" ;;
    esac
    read -r arch words <<<"$words"
    read -ra model <<<"$words"
    if [[ -n "$parent" ]]; then
        dropout=0.1 # 1-bit weights bear less of it (docs/results/bmt.md)
        parent+="${1#"$system"}" # of the same seed
        model+=(--finetune-from-model "models/$parent/average.pt")
    fi
    criterion=(--criterion label_smoothed_cross_entropy --label-smoothing 0.1)
    if ((distilled)); then
        criterion=(--criterion distillation --teacher "models/bmt${1#"$system"}/average.pt")
    fi
}

# with_needs NAME: adds to `chosen` what the system needs, and the system.
with_needs() {
    local name="$1" needed
    describe "$name"
    needed="$parent"
    [[ "$seed" == 1 ]] || with_needs "${name%@*}" # for its rate
    [[ -z "$needed" ]] || with_needs "$needed"
    [[ " ${chosen[*]-} " == *" $name "* ]] || chosen+=("$name")
}

# ---- the steps of one system ---------------------------------------------------------------------

done_before() { [[ -e "models/$1/.stages/$2" ]]; }

# best_rate: of the system described.
best_rate() {
    if dry; then
        echo "${rates[0]}"
    else
        sed -n 's/^ *"rate": "\(.*\)",$/\1/p' "models/$system/rates.json"
    fi
}

# train_rate NAME RATE UPDATES
train_rate() {
    local lr="$2" updates="$3"
    train_model "models/$1/rate-$2" "${model[@]}"
}

choose_rate() {
    run python "$REPO/recipes/multi30k_all.py" choose "models/$1" --updates "$grid" \
        --rates "${rates[@]}"
}

train_to_end() {
    local name="$1" rate
    rate="$(best_rate)"
    dry || printf '%s\n' "seed=$seed" "rate=$rate" "batch=$max_tokens x $update_freq" "dropout=$dropout" \
        "model=$arch ${model[*]}" "criterion=${criterion[*]}" >"models/$name/settings.txt"
    into "models/$name/machine.json" python "$REPO/benchmarks/bench.py"
    run ln -sfn "rate-$rate/train.log" "models/$name/train.log"
    train_rate "$name" "$rate" "$updates"
}

average_best() {
    average_checkpoints "models/$1/rate-$(best_rate)" "models/$1/average.pt"
}

# translate_test NAME TEST
translate_test() {
    run mkdir -p "models/$1/$2"
    DATA_BIN="$(binary_data "$2")" translate "models/$1/average.pt" "models/$1/$2/generated.txt"
}

binary_data() { if [[ "$1" == test ]]; then echo bin; else echo "unseen/$1"; fi; }

# ready NAME STEP: whether what the step needs is there.
ready() {
    local rate
    describe "$1"
    [[ -z "$parent" ]] || done_before "$parent" model || return 1
    case "$2" in
    model)
        if [[ "$seed" == 1 ]]; then
            for rate in "${rates[@]}"; do done_before "$1" "rate-$rate" || return 1; done
        else
            [[ -e "models/$system/rates.json" ]]
        fi
        ;;
    test*) done_before "$1" model ;;
    esac
}

# take_step NAME STEP: in a process of its own.
take_step() {
    local name="$1" step="$2"
    describe "$name"
    STAGES="models/$name/.stages"
    dry || mkdir -p "$STAGES"
    case "$step" in
    rate-*) stage "$step" train_rate "$name" "${step#rate-}" "$grid" ;;
    test*) stage "$step" translate_test "$name" "$step" ;;
    model)
        if [[ "$seed" == 1 ]]; then stage choose choose_rate "$name"; fi
        stage train train_to_end "$name"
        stage model average_best "$name"
        ;;
    esac
}

# ---- all systems ---------------------------------------------------------------------------------

# list_steps: sets `steps`, `NAME STEP` in the order of importance, without those that are done.
list_steps() {
    local name step rate all
    steps=()
    for name in "${chosen[@]}"; do
        describe "$name"
        all=(model "${tests[@]}")
        if [[ "$seed" == 1 ]]; then all=("${rates[@]/#/rate-}" "${all[@]}"); fi
        for step in "${all[@]}"; do
            { ! dry && done_before "$name" "$step"; } || steps+=("$name $step")
        done
    done
}

# take_steps: as many at once as --jobs says, always the first of those that are ready.
take_steps() {
    local running index name step
    while true; do
        running="$(jobs -rp | wc -l)"
        for index in "${!steps[@]}"; do
            ((running < jobs)) || break
            read -r name step <<<"${steps[index]}"
            ready "$name" "$step" || continue
            unset "steps[index]"
            start_step "$name" "$step"
            running=$((running + 1))
        done
        ((running)) || break
        sleep 1
    done
}

# start_step NAME STEP: in the background, in a process group of its own so that it can be stopped
# with its children. Each line that it says begins with its name.
start_step() {
    set -m
    {
        trap explain_stop EXIT
        trap 'exit 143' TERM
        exec > >(sed -u "s|^|$1: |" >&2) 2>&1
        take_step "$1" "$2"
    } &
    set +m
}

stop_steps() {
    local group
    for group in $(jobs -rp); do
        kill -TERM -- "-$group" 2>/dev/null || true
    done
    wait
    log "all trainings have stopped; run the same command again to continue."
}

train_all() {
    local name step
    list_steps
    if dry; then
        for step in "${steps[@]}"; do
            read -r name step <<<"$step"
            take_step "$name" "$step"
        done
        return
    fi
    trap stop_steps EXIT
    take_steps
    trap explain_stop EXIT
    list_steps
    ((${#steps[@]} == 0)) ||
        log "not done: $(printf '%s; ' "${steps[@]}")the messages above say why"
}

# ---- the corpus, and what comes out --------------------------------------------------------------

# A folder that has been binarized is kept: trainings may be reading it.
binarize_all() {
    if [[ -e bin/data-manifest.json ]] && cmp -s bin/codes final/codes; then
        log "bin: made before"
    else
        binarize_corpus
    fi
}

binarize_unseen() {
    run rm -rf "unseen/$1"
    quietly "preprocess-$1.log" fairseq-preprocess --user-dir "$USER_DIR" --source-lang "$src" \
        --target-lang "$tgt" --srcdict "bin/dict.$src.txt" --tgtdict "bin/dict.$tgt.txt" \
        --testpref "final/$1" --destdir "unseen/$1"
}

make_data() {
    local test found=()
    [[ -z "$mirror" ]] || run rm -f .stages/corpus # a mirror may have got further tests
    stage corpus prepare_corpus
    stage binarize binarize_all
    for test in "${tests[@]}"; do
        dry || [[ -e "final/$test.$src" ]] || continue
        found+=("$test")
        [[ "$test" == test ]] || stage "binarize-$test" binarize_unseen "$test"
    done
    tests=("${found[@]}")
}

# translated NAME TEST: in a dry run, by the commands printed.
translated() {
    if dry; then [[ " ${chosen[*]} " == *" $1 "* ]]; else done_before "$1" "$2"; fi
}

# list_finished: sets `finished`, the systems that have translated the first test, the known first.
list_finished() {
    local name folder
    finished=()
    for name in "${group_1[@]}" "${group_2[@]}" "${group_3[@]}" "${chosen[@]}"; do
        [[ " ${finished[*]-} " != *" $name "* ]] || continue
        if translated "$name" test; then finished+=("$name"); fi
    done
}

# compare_on TEST: all systems in one table, with all their seeds.
compare_on() {
    local test="$1" name run runs systems=() baseline=""
    for name in "${finished[@]}"; do
        [[ "$name" != *@* ]] || continue
        translated "$name" "$test" || continue
        runs=""
        for run in "${finished[@]}"; do
            [[ "${run%@*}" == "$name" ]] || continue
            translated "$run" "$test" || continue
            runs+="${runs:+,}models/$run/$test/generated.txt"
        done
        systems+=(--system "$name=$runs,checkpoint=models/$name/average.pt,log=models/$name/train.log")
        [[ -n "$baseline" && "$name" != transformer ]] || baseline="$name"
    done
    ((${#systems[@]})) || return 0
    into "compare-$test.txt" fairseq-ext compare "${systems[@]}" --baseline "$baseline" \
        --ref "reference/$test.$tgt" --detokenize "$tgt" --tokenized-ref "text/$test.$tgt" \
        -o "compare-$test"
}

draw_all() {
    local name logs=() systems=() relative=()
    for name in "${finished[@]}"; do
        [[ "$name" != *@* ]] || continue
        [[ "$name" != transformer ]] || relative=(--relative-to transformer)
        logs+=(--log "$name=models/$name/train.log")
        systems+=(--system "$name=models/$name/test/generated.txt")
    done
    run fairseq-ext plot curves "${logs[@]}" -o curves.png
    run fairseq-ext plot lengths "${systems[@]}" --tokenized-ref "text/test.$tgt" \
        --buckets "$buckets" "${relative[@]}" -o lengths.png
    [[ " ${finished[*]} " != *" muse "* ]] ||
        run fairseq-ext plot gates models/muse/average.pt -o gates.png
}

report_all() {
    local test
    list_finished
    ((${#finished[@]})) || die "no system is finished; the messages above say why."
    for test in "${tests[@]}"; do
        compare_on "$test"
    done
    draw_all
    run python "$REPO/recipes/multi30k_all.py" report --dir . --tests "${tests[@]}" \
        --names "${finished[@]}" --patience "$patience" --average "$average" --beam "$beam"
}

# What makes it the same run: one setting per line.
settings() {
    cat <<SETTINGS
data=$data
device=$device
batch=$max_tokens $update_freq
updates=$updates $warmup
rates=${rates[*]} $grid
SETTINGS
}

main() {
    local name file chosen=() finished=() steps=()
    read_options "$@"
    use_environment sacremoses subword_nmt
    choose_device
    open_run "$out" "$(settings)"
    make_data
    for name in "${names[@]}"; do
        with_needs "${name%@1}"
    done
    train_all
    report_all
    dry && exit
    printf '\nEverything is in %s:\n' "$out"
    for file in systems.{md,json} compare-*.md curves.png lengths.png gates.png; do
        [[ ! -e "$file" ]] || echo "  $file"
    done
    ((${#steps[@]} == 0)) || exit 1
}

# On one line: bash reads a script while it runs, and this one may be edited meanwhile.
main "$@"; exit
