# shellcheck shell=bash
# Code that multi30k_all.sh and real_en_de.sh share: train many systems on one corpus, several at a
# time, and compare them in one table. A script sources this file, sets the variables below, defines
# `usage`, `use_smoke_settings` and `use_device`, and calls `main "$@"`.
# shellcheck disable=SC2034,SC2154,SC2317,SC2329  # scripts share the variables; `stage` calls functions
# shellcheck source-path=SCRIPTDIR source=official.sh
source "$(dirname "${BASH_SOURCE[0]}")/official.sh" # for corpus, training and translation
# shellcheck source-path=SCRIPTDIR source=systems.sh
source "$(dirname "${BASH_SOURCE[0]}")/systems.sh"

recipe=""                  # name of the recipe, and of its folder in runs/
groups=()                  # lines of systems, the most important first; NAME@S is NAME with seed S
tests=(test)               # the first is the corpus's own
dictionary=(--joined-dictionary)
average=10 beam=5 buckets=8,12,16,20 half=--bf16 flags=(--clip-norm 1.0)
patience=0                 # validations without a gain after which a training ends; 0: never
grid=2000                  # updates after which the learning rates of a system are compared
declare -A system_rates=() # learning rates of systems that do not try the common ones
schedule_kind=inverse_sqrt # or cosine

# ---- the options ---------------------------------------------------------------------------------

names=() rates="" updates="" jobs="" device="" smoke=0

own_options="" # options that only the sourcing script has, as for read_arguments

# check_own: checks these options in a script that has any.
check_own() { :; }

own_option() {
    local members
    [[ "$1" == --group ]] || return 1
    needs_value "$1" "$@"
    [[ "$2" =~ ^[1-9]$ && "$2" -le "${#groups[@]}" ]] ||
        die "\`--group\` must be from 1 to ${#groups[@]}, but is \`$2\`."
    read -ra members <<<"${groups[$2 - 1]}"
    operands+=("${members[@]}")
}

# choose_corpus: sets the corpus and its test sets in a script where these depend on the options.
choose_corpus() { :; }

read_options() {
    read_arguments "--device= --jobs= --rates= --updates= --data= --out= $own_options WORD" "$@"
    check_own
    names=("${operands[@]}")
    [[ "${SMOKE:-0}" != 1 ]] || use_smoke_settings
    ((${#names[@]})) || read -ra names <<<"${groups[*]}"
    check_options
    choose_corpus
    ((smoke == 0)) || recipe="smoke-$recipe"
    out="$(absolute "${out:-$REPO/runs/$recipe}")"
    data="$(absolute "${data:-$REPO/runs/data/$corpus}")"
    [[ -z "$mirror" || "$mirror" == *://* ]] || mirror="$(absolute "$mirror")"
}

check_options() {
    local name
    for name in "${names[@]}"; do
        [[ " ${groups[*]} " == *" ${name%@*} "* && "$name" =~ ^[^@]+(@[1-9][0-9]{0,3})?$ ]] ||
            die "\`$name\` must be a system, or one with @SEED, but is not; --help lists them."
    done
    ((NODES == 1)) || die "this recipe uses one node; \`NODES\` must be 1."
    [[ "$device" =~ ^(|cpu|gpu)$ ]] || die "\`--device\` must be cpu or gpu, but is \`$device\`."
    [[ "${rates:-1}" =~ ^[0-9.e-]+(,[0-9.e-]+)*$ ]] ||
        die "\`--rates\` must be numbers like 0.001,0.002,0.004, but is \`$rates\`."
    positive ${jobs:+--jobs} ${updates:+--updates}
}

# choose_device: chooses the device and the settings that depend on it; options have precedence.
choose_device() {
    if [[ -z "$device" ]]; then
        device=cpu
        dry || device="$(python -c 'import torch
print("gpu" if torch.cuda.is_available() else "cpu")')"
    fi
    [[ -z "$rates" ]] || system_rates=() # --rates holds for all systems
    if on_gpu; then
        max_tokens=4096 update_freq=2 warmup=2000 jobs="${jobs:-1}"
    else
        export CUDA_VISIBLE_DEVICES=""
        max_tokens=1000 update_freq=1 warmup=1000 jobs="${jobs:-$(env -u OMP_NUM_THREADS nproc)}"
    fi
    use_device "$device"
    ((smoke == 0)) || max_tokens=3000 update_freq=1 warmup=4 bpe=400
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
    ((patience == 0)) || flags+=(--patience "$patience")
    "$schedule_kind"
}

on_gpu() { [[ "$device" == gpu ]]; }

# ---- the systems ---------------------------------------------------------------------------------

# describe NAME[@SEED]: sets what the system's training needs, with `parent`, the system that it
# starts from, and `tries`, the learning rates to try.
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
    binary | ternary) words="${matched[$system]}" parent=transformer ;;
    binary-muse) words="${matched[muse]} --binary-weights qkv,out,ffn" parent=muse ;;
    ternary-muse) words="${matched[muse]} --binary-weights ternary" parent=muse ;;
    binary-linformer) words="${matched[linformer]} --binary-weights qkv,out,ffn" parent=linformer-32 ;;
    *) words="${matched[$system]}" ;;
    esac
    IFS=, read -ra tries <<<"${system_rates[$system]:-$rates}"
    read -r arch words <<<"$words"
    read -ra model <<<"$words"
    if [[ -n "$parent" ]]; then
        dropout=0.1 # 1-bit and ternary weights bear less of it (docs/results/bmt.md)
        parent+="${1#"$system"}" # of the same seed
        model+=(--finetune-from-model "models/$parent/average.pt")
    fi
    criterion=(--criterion label_smoothed_cross_entropy --label-smoothing 0.1)
    if ((distilled)); then
        criterion=(--criterion distillation --teacher "models/bmt${1#"$system"}/average.pt")
    fi
}

# with_needs NAME: adds to `chosen` the systems that system NAME needs, and then NAME itself.
with_needs() {
    local name="$1" needed
    describe "$name"
    needed="$parent"
    [[ "$seed" == 1 ]] || with_needs "${name%@*}" # for the learning rate
    [[ -z "$needed" ]] || with_needs "$needed"
    [[ " ${chosen[*]} " == *" $name "* ]] || chosen+=("$name")
}

# ---- the steps of one system ---------------------------------------------------------------------

# done_before NAME STEP: whether the step is finished, a translation with the engine of this call.
done_before() {
    [[ -e "models/$1/.stages/$2" ]] || return 1
    [[ "$2" != test* ]] || has_engine "models/$1/$2/generated.txt"
}

# best_rate: prints the best learning rate of the system that `describe` has set.
best_rate() {
    if dry; then
        echo "${tries[0]}"
    else
        sed -n 's/^ *"rate": "\(.*\)",$/\1/p' "models/$system/rates.json"
    fi
}

# train_rate NAME RATE UPDATES
train_rate() {
    local lr="$2" updates="$3"
    train_model "models/$1/rate-$2" "${model[@]}"
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

# translate_test NAME TEST: translates a test set with the averaged checkpoint.
translate_test() {
    run mkdir -p "models/$1/$2"
    DATA_BIN="$(binary_data "$2")" translate "models/$1/average.pt" "models/$1/$2/generated.txt"
}

binary_data() { if [[ "$1" == test ]]; then echo bin; else echo "unseen/$1"; fi; }

# ready NAME STEP: whether everything is there that the step needs.
ready() {
    local rate
    describe "$1"
    [[ -z "$parent" ]] || done_before "$parent" model || return 1
    case "$2" in
    model)
        if [[ "$seed" == 1 ]]; then
            for rate in "${tries[@]}"; do done_before "$1" "rate-$rate" || return 1; done
        else
            [[ -e "models/$system/rates.json" ]]
        fi
        ;;
    test*) done_before "$1" model ;;
    esac
}

# take_step NAME STEP: runs a step, in a process of its own.
take_step() {
    local name="$1" step="$2"
    describe "$name"
    STAGES="models/$name/.stages"
    dry || mkdir -p "$STAGES"
    dry || done_before "$name" "$step" || rm -f "$STAGES/$step" # made with another engine
    case "$step" in
    rate-*) stage "$step" train_rate "$name" "${step#rate-}" "$grid" ;;
    test*) stage "$step" translate_test "$name" "$step" ;;
    model)
        if [[ "$seed" == 1 ]]; then
            stage choose run python "$REPO/recipes/multi30k_all.py" choose "models/$name" \
                --updates "$grid" --rates "${tries[@]}"
        fi
        stage train train_to_end "$name"
        stage model average_best "$name"
        ;;
    esac
}

# ---- all systems ---------------------------------------------------------------------------------

# list_steps: sets `steps` to the unfinished steps, each `NAME STEP`, the most important first.
list_steps() {
    local name step rate all
    steps=()
    for name in "${chosen[@]}"; do
        describe "$name"
        all=(model "${tests[@]}")
        if [[ "$seed" == 1 ]]; then all=("${tries[@]/#/rate-}" "${all[@]}"); fi
        for step in "${all[@]}"; do
            { ! dry && done_before "$name" "$step"; } || steps+=("$name $step")
        done
    done
}

# take_steps: runs the steps, --jobs of them at a time, and always starts the first that is ready.
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

# start_step NAME STEP: runs a step in the background, in a process group of its own, so that it can
# be stopped with its children. Each line of its output begins with the system's name.
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

# ---- the corpus and the results ------------------------------------------------------------------

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
    local test existing=()
    [[ -z "$mirror" ]] || run rm -f .stages/corpus # the mirror may have further test sets by now
    stage corpus prepare_corpus
    stage binarize binarize_all
    for test in "${tests[@]}"; do
        dry || [[ -e "final/$test.$src" ]] || continue
        existing+=("$test")
        [[ "$test" == test ]] || stage "binarize-$test" binarize_unseen "$test"
    done
    tests=("${existing[@]}")
}

# translated NAME TEST: whether the system has translated the test set with this call's engine (or
# would in a dry run).
translated() {
    if dry; then [[ " ${chosen[*]} " == *" $1 "* ]]; else done_before "$1" "$2"; fi
}

# list_finished: sets `finished` to the systems that have translated the first test set, in order.
list_finished() {
    local name folder
    finished=()
    for name in ${groups[*]} "${chosen[@]}"; do # the words of the groups
        [[ " ${finished[*]} " != *" $name "* ]] || continue
        if translated "$name" test; then finished+=("$name"); fi
    done
}

# compare_on TEST: compares all finished systems, with all their seeds, in one table.
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
    collect_results
}

# collect_results: copies to results/ what a repository needs to show and check the tables: logs,
# settings and machines, and the translations in compare-*.tsv.gz. The folder has some megabytes.
collect_results() {
    local name file
    for name in "${finished[@]}"; do
        run mkdir -p "results/$name"
        into "results/$name/train.log.gz" gzip -9nc "models/$name/train.log"
        dry && continue
        for file in settings.txt machine.json rates.json; do
            [[ ! -e "models/$name/$file" ]] || cp "models/$name/$file" "results/$name/"
        done
    done
    dry && return
    cp systems.md systems.json ./compare-*.* curves.* lengths.* results/
    rm -f results/compare-*.html # contains the pictures once more
}

# Settings that must be equal for a run to be continued, one per line.
settings() {
    local system
    cat <<SETTINGS
data=$data
device=$device
batch=$max_tokens $update_freq
updates=$updates $warmup
rates=${rates//,/ } $grid
SETTINGS
    for system in "${!system_rates[@]}"; do
        echo "rates of $system=${system_rates[$system]}"
    done | sort
}

main() {
    local name chosen=() finished=() steps=()
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
    list_results systems.{md,json} compare-*.md curves.png lengths.png gates.png results
    ((${#steps[@]} == 0)) || exit 1
}
