# shellcheck shell=bash
# Functions that the recipes share. A script sources this file first and gets strict mode:
#
#     source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
#     read_arguments "--src= --tgt=" "$@" # sets src and tgt, and answers --help
#     use_environment sacremoses          # finds or makes a Python that has everything
#     open_run "$out" "$settings"         # enters and locks the run's folder
#     stage text make_text                # runs the function once; the next start skips it
#
# DRY_RUN=1 prints the commands instead of running them. Several GPUs and nodes: launch.sh.
# A script ends with `main "$@"; exit` on one line, because bash reads a script while it runs, and it
# may be edited meanwhile.
set -euo pipefail

REPO="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
USER_DIR="$REPO/user_dir"
STAGE=""         # the stage being run, for the message of an interrupted script
STAGES=".stages" # folder with a file for each finished stage
RUN_OUT=""       # the run's folder
[[ "${SMOKE:-0}" == 1 ]] || unset SMOKE # so that SMOKE=0 is no smoke run anywhere

export PYTHONUTF8=1     # text is UTF-8, also under LANG=C
export PYTHONNOUSERSITE=1 # packages from ~/.local would come before the pinned ones
# Threads that wait for each other sleep: by spinning they make training ten times slower
# wherever another program wants the same cores.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"
if ! [[ -w "${HOME:-/}" ]]; then # matplotlib and pip want a folder of their own
    export MPLCONFIGDIR="${MPLCONFIGDIR:-$REPO/.venv/.cache/matplotlib}"
    export PIP_CACHE_DIR="${PIP_CACHE_DIR:-$REPO/.venv/.cache/pip}"
fi

log() { printf '[%(%H:%M:%S)T] %s\n' -1 "$*" >&2; }

die() {
    printf '%s: error: %s\n' "$(basename "$0")" "$*" >&2
    exit 1
}

dry() { [[ "${DRY_RUN:-0}" == 1 ]]; }

# run COMMAND...: shows the command, then runs it unless this is a dry run.
run() {
    show "$@"
    dry || "$@"
}

# show WORD...: prints a line that can be pasted into a shell. A lone < or > is not quoted, and
# neither is $(COMMAND), which a dry run shows in place of what only the real run knows.
show() {
    local word quoted line=""
    for word in "$@"; do
        if [[ "$word" == '$('*')' ]]; then
            line+=" \"$word\""
        else
            printf -v quoted ' %q' "$word"
            line+="$quoted"
        fi
    done
    line="${line// \\< / < }"
    printf '+%s\n' "${line// \\> / > }" >&2
}

# needs_value OPTION "$@": dies unless a value follows the option.
needs_value() {
    [[ $# -ge 3 && -n "$3" ]] || die "\`$1\` needs a value; --help lists the options."
}

# set_option OPTION VALUE ...: sets the variable that is named like the option.
set_option() {
    local name="${1#--}"
    needs_value "$1" "$@"
    printf -v "${name//-/_}" '%s' "$2"
}

# own_option OPTION VALUE...: reads an option for which a script has code of its own; fails if there
# is no such option.
own_option() { return 1; }

# read_arguments "OPTION..." ARGUMENT...: reads the command line of a recipe with these options. The
# value of `--bpe=` goes into the variable `bpe`; an option without `=` is a switch, and its variable
# gets its name. If the list has `WORD`, arguments that are no options go into the array `operands`;
# if the list has `--`, all arguments after `--` go into the array `extra`.
operands=() extra=()
read_arguments() {
    local options=" $1 " hint=""
    [[ "$options" != *" -- "* ]] || hint=" Flags for fairseq-train come after \`--\`."
    shift
    while (($#)); do
        if [[ "$1" == --help || "$1" == -h ]]; then
            usage && exit
        elif [[ "$1" == -- && -n "$hint" ]]; then
            extra=("${@:2}")
            return
        elif [[ "$1" != -* && "$options" == *" WORD "* ]]; then
            operands+=("$1")
        elif [[ "$1" =~ ^--[a-z-]+$ && "$options" == *" $1= "* ]]; then
            set_option "$@"
            shift
        elif [[ "$1" =~ ^--[a-z-]+$ && "$options" == *" $1 "* ]]; then
            set_option "$1" "$1"
        elif own_option "$@"; then
            shift
        else
            die "\`$1\` is not an option; --help lists them.$hint"
        fi
        shift
    done
}

# refuse_extra "FLAG..." OPTIONS [REASON]: dies if one of the flags follows `--`. The message names the
# options of the recipe that replace these flags.
refuse_extra() {
    local word
    for word in "${extra[@]}"; do
        [[ " $1 " != *" ${word%%=*} "* ]] ||
            die "\`${word%%=*}\` must not follow \`--\`${3:-}; use the recipe's $2, before \`--\`."
    done
}

# absolute PATH: prints the path from the root, because a run changes its folder.
absolute() {
    local path="$1"
    [[ "$path" == /* ]] || path="$PWD/$path"
    while [[ "$path" == ?*/ ]]; do path="${path%/}"; done # `mv` takes `link/` for what it links to
    echo "$path"
}

# positive OPTION...: dies unless the variables that are named like the options, such as `max_tokens`
# for `--max-tokens`, are whole numbers above zero.
positive() {
    local option name
    for option in "$@"; do
        name="${option#--}"
        name="${name//-/_}"
        [[ "${!name}" =~ ^[1-9][0-9]{0,9}$ ]] ||
            die "\`$option\` must be a positive whole number, but is \`${!name}\`."
    done
}

# shellcheck source-path=SCRIPTDIR
source "$REPO/recipes/launch.sh"

check_launch
# One GPU unless more are asked for: fairseq would take all, and the batches would grow.
((GPUS > 1)) || export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES-0}"

# ---- the Python environment ----------------------------------------------------------------------

# use_environment MODULE...: puts a Python on PATH that has this clone's fairseq_ext, all that
# `fairseq-ext doctor` asks for, and the modules: the active one if it works, or else .venv,
# which is made, or completed, from the package index.
use_environment() {
    if dry; then return; fi
    local reason
    if reason="$(unusable "$@")"; then
        log "Python: the active environment, $(command -v python)"
        return
    fi
    log "Python: not the active environment ($reason); using .venv"
    exec 8<"$REPO/recipes/lib.sh" # two recipes may start at once; any file can carry the lock
    lock 8 "another process to finish installing into .venv"
    if [[ -x "$REPO/.venv/bin/python" ]] && reason="$(in_venv unusable "$@")"; then
        :
    else
        [[ -e "$REPO/.venv" ]] && log "Python: completing .venv (${reason:-broken})"
        install "$@"
        reason="$(in_venv unusable "$@")" ||
            die "the installation in .venv does not work: $reason. See \`.venv/bin/fairseq-ext doctor\`."
    fi
    exec 8<&-
    enter_venv
}

# unusable MODULE...: prints why the python on PATH lacks something we need, with exit status 1;
# nothing, with exit status 0, if it has everything.
unusable() {
    local here module
    # Not in the clone, where the folder fairseq_ext would be importable without installation.
    cd /
    if ! command -v python >/dev/null || ! python -c '' 2>/dev/null; then
        echo "no python" && return 1
    fi
    if ! here="$(python -c 'import importlib.util as u; print(u.find_spec("fairseq_ext").origin)' \
        2>/dev/null)"; then
        echo "fairseq-ext is not installed" && return 1
    fi
    if ! [[ "$here" -ef "$REPO/fairseq_ext/__init__.py" ]]; then
        echo "its fairseq-ext is another copy, $here" && return 1
    fi
    if ! python -c 'import importlib.util as u; assert u.find_spec("torch") and u.find_spec("fairseq")' \
        2>/dev/null; then
        echo "it cannot train: fairseq-ext[train] is not installed" && return 1
    fi
    for module in "$@"; do
        python -c "import $module" 2>/dev/null || { echo "no $module" && return 1; }
    done
    healthy || { echo "\`fairseq-ext doctor\` finds an error" && return 1; }
}

# healthy: whether `fairseq-ext doctor` finds no error. It takes five seconds, so it runs again only
# after a package, or this clone, has changed.
healthy() {
    local folder stamp
    folder="$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
    stamp="${VIRTUAL_ENV:-$(python -c 'import sys; print(sys.prefix)')}/.fairseq-ext-doctor"
    if [[ -e "$stamp" && -z "$(find "$folder" -maxdepth 0 -newer "$stamp")" && -z "$(find \
        "$REPO/fairseq_ext" -name '*.py' -newer "$stamp" -print -quit)" ]]; then
        return
    fi
    fairseq-ext doctor >/dev/null 2>&1 || return
    { : >"$stamp"; } 2>/dev/null || true # in an environment that cannot be written to, it runs each time
}

in_venv() { (enter_venv && "$@"); }

enter_venv() {
    export VIRTUAL_ENV="$REPO/.venv" PATH="$REPO/.venv/bin:$PATH"
    unset PYTHONHOME
    hash -r
}

# The order matters: fairseq's build imports torch, numpy and Cython, and without build isolation
# it finds the ones installed here, not gigabytes of others. fairseq comes last and without its
# requirements, because one of them, torchaudio, is large, is not used for text, and may not
# exist for this torch; what text needs is installed before.
install() {
    local python began=$SECONDS extra=recipes
    [[ " $* " != *" pytest "* ]] || extra=dev
    python="$(find_python)"
    log "installing with $("$python" --version) into .venv, once: PyTorch, some 70 other packages and" \
        "fairseq, which is compiled where it has no wheel. pip shows nothing until each of its three" \
        "commands ends. On two free CPU cores all three take 3 to 6 minutes."
    # An existing folder is repaired, not emptied.
    "$python" -m venv "$REPO/.venv" ||
        die "\`$python -m venv\` failed. On Debian and Ubuntu: apt install python3-venv"
    in_venv install_packages "$extra"
    log "installed in $((SECONDS - began)) s"
}

# install_packages EXTRA: installs the package with that extra, and fairseq.
install_packages() {
    cd "$REPO"
    local -x PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CONSTRAINT="" PIP_REQUIRE_VIRTUALENV=1
    install_base "$1"
    install_fairseq fairseq-fixed
}

install_base() {
    pip_install torch numpy cython setuptools wheel
    pip_install --no-build-isolation -e ".[$1]" # with the extra `torch`: what fairseq needs
}

# install_fairseq REQUIREMENT: installs what pip accepts, such as a version or a folder.
install_fairseq() {
    command -v c++ >/dev/null || command -v g++ >/dev/null ||
        log "no C++ compiler found: if fairseq has no wheel for this Python, install g++"
    # Where it is compiled: without symbols for debuggers, and one extension after the other, because
    # torch's builder loses object files when extensions are compiled at the same time. pip keeps the
    # wheel for the next environment.
    local -x CFLAGS="${CFLAGS:-} -g0"
    pip_install --no-build-isolation --no-deps "$1"
}

# CONSTRAINTS in the environment names a file to use instead of constraints.txt.
pip_install() {
    local began=$SECONDS
    show pip install "$@"
    python -m pip install --quiet -c "${CONSTRAINTS:-constraints.txt}" "$@" ||
        die "pip could not install: $*. Its message is above; run the same command to try again."
    log "took $((SECONDS - began)) s"
}

# pythons NAME: prints the versions that fairseq_ext/version.py lists under that name.
pythons() {
    sed -n "s/^$1 = (\(.*\))\$/\1/p" "$REPO/fairseq_ext/version.py" | tr -d '",'
}

find_python() {
    local name supported=() wheels=()
    read -ra supported < <(pythons PYTHONS)
    read -ra wheels < <(pythons FAIRSEQ_WHEELS) # fairseq is not compiled there
    for name in "${wheels[@]/#/python}" "${supported[@]/#/python}" python3 python; do
        if "$name" -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] not in sys.argv[1:])' \
            "${supported[@]}" >/dev/null 2>&1; then
            command -v "$name" && return
        fi
    done
    die "no Python ${supported[*]} found; install one of these, and put it on PATH."
}

# lock DESCRIPTOR WHAT: waits for an exclusive lock, released when the script ends.
lock() {
    command -v flock >/dev/null || return 0
    flock -n "$1" && return
    log "waiting for $2"
    flock "$1"
}

# ---- runs and their stages -----------------------------------------------------------------------

# open_run OUT SETTINGS: enters the folder OUT, which no other process uses meanwhile. If OUT has a
# run with the same settings, it is continued. A run with other settings is moved out of the way;
# runs are never mixed or deleted.
open_run() {
    local out="$1" settings="$2" former=1
    if dry; then
        show mkdir -p "$out"
        show cd "$out"
        return
    fi
    if joining; then
        join_run "$out" "$settings"
        return
    fi
    [[ "$out" != *[:,]* ]] || # fairseq splits paths there, and `compare` its systems
        die "\`$out\` contains a colon or a comma; choose another folder."
    if [[ -d "$out" && ! -e "$out/settings.txt" && -n "$(ls -A "$out" 2>/dev/null)" &&
        ! -e "$out/.lock" ]]; then
        die "\`$out\` exists but is no run of this recipe; choose another \`--out\`."
    fi
    mkdir -p "$out" 2>/dev/null || die "the folder \`$out\` cannot be made; choose another \`--out\`."
    (: >>"$out/.lock") 2>/dev/null || die "cannot write into \`$out\`; choose another \`--out\`."
    exec 9>>"$out/.lock"
    lock 9 "another process that works in $out"
    if [[ -e "$out/settings.txt" && "$(cat "$out/settings.txt")" != "$settings" ]]; then
        while [[ -e "$out.old-$former" ]]; do former=$((former + 1)); done
        log "settings changed (< before, > now):"
        diff "$out/settings.txt" <(printf '%s\n' "$settings") >&2 || true
        mv "$out" "$out.old-$former"
        log "the former run is now $out.old-$former"
        open_run "$out" "$settings"
        return
    fi
    printf '%s\n' "$settings" >"$out/settings.tmp"
    mv "$out/settings.tmp" "$out/settings.txt"
    cd "$out"
    STAGES=.stages
    mkdir -p "$STAGES"
    RUN_OUT="$out"
    trap explain_stop EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
}

# close_run: lets other processes into the folder.
close_run() { exec 9>&-; }

# stage NAME COMMAND...: runs the command unless it has succeeded here before, and notes how long
# it took. An unfinished stage is run again (training continues from its last checkpoint).
stage() {
    local name="$1" began=$SECONDS
    if joining; then
        join_stage "$@"
        return
    fi
    shift
    if dry; then
        "$@"
        return
    fi
    if [[ -e "$STAGES/$name" ]]; then
        log "$name: done before"
        return
    fi
    log "$name …"
    STAGE="$name"
    "$@"
    STAGE=""
    printf '%d\n' $((SECONDS - began)) >"$STAGES/$name.tmp"
    mv "$STAGES/$name.tmp" "$STAGES/$name"
    log "$name: $((SECONDS - began)) s"
}

# list_results FILE...: prints the run's folder, and those of the files that it has.
list_results() {
    local file
    printf '\nEverything is in %s:\n' "$out"
    for file in "$@"; do
        [[ ! -e "$file" ]] || echo "  $file"
    done
}

explain_stop() {
    local status=$?
    [[ "$status" == 0 || -z "$STAGE" ]] ||
        log "stopped in stage \`$STAGE\` of $RUN_OUT; run the same command again to continue."
}

# ---- steps that several recipes take -------------------------------------------------------------

# smoke_text SRC TGT TRAIN VALID TEST FOLDER: writes that many pairs of the shipped Spanish-English
# corpus to FOLDER, in files with the endings SRC and TGT; any languages will do to try every step.
smoke_text() {
    local split from=es to=en
    [[ "$1" != en ]] || from=en to=es
    run fairseq-ext corpus tatoeba --sample "$3,$4,$5" --out "$6"
    for split in train valid test; do
        [[ "$from" == "$1" ]] || run mv "$6/$split.$from" "$6/$split.$1"
        [[ "$to" == "$2" ]] || run mv "$6/$split.$to" "$6/$split.$2"
    done
}

# own_text OPTION FOLDER SRC TGT: prints the folder's path from the root; dies unless it holds train,
# valid and test text in both languages. A dry run prints the path of a folder that need not exist.
own_text() {
    local folder split side others=""
    [[ "$1" != --* ]] || others="; \`--src\` and \`--tgt\` name others"
    [[ "$3" != "$4" ]] || die "source and target language are both \`$3\`; choose two."
    if dry; then
        absolute "$2"
        return
    fi
    folder="$(cd "$2" 2>/dev/null && pwd)" ||
        die "\`$1\` must be a folder with train, valid and test text, but \`$2\` cannot be entered."
    for split in train valid test; do
        for side in "$3" "$4"; do
            [[ -f "$folder/$split.$side" ]] || die "\`$folder\` has no file \`$split.$side\`; it must" \
                "hold train, valid and test, each with the endings .$3 and .$4 of the two" \
                "languages$others."
        done
    done
    printf '%s\n' "$folder"
}

# outputs FOLDER SEEDS: prints the paths of a model's translations, also of the seeds in FOLDER@2 …
outputs() {
    local seed list="$1/generated.txt"
    for ((seed = 2; seed <= $2; seed++)); do
        { ! dry && [[ ! -e "$1@$seed/.stages/evaluate" ]]; } || list+=",$1@$seed/generated.txt"
    done
    printf '%s\n' "$list"
}

# The values of `--subwords`, and the Python module that each needs.
declare -A SUBWORDS=([bpe]=subword_nmt [sentencepiece-unigram]=sentencepiece
    [sentencepiece-bpe]=sentencepiece [tokenizers]=tokenizers [none]=subword_nmt)

# check_subwords KIND: dies unless it is a kind of subwords that can be learnt.
check_subwords() {
    [[ -n "${SUBWORDS[$1]-}" ]] || die "\`--subwords\` must be bpe, sentencepiece-unigram," \
        "sentencepiece-bpe, tokenizers or none, but is \`$1\`."
}

# check_architecture NAME FLAG...: dies unless fairseq-train takes --arch NAME and the flags; called
# before the text is made. fairseq-train takes seconds to answer, so without flags the names of our
# own models are looked up in their source.
check_architecture() {
    if dry || { (($# == 1)) && grep -qF "\"$1\"" "$REPO"/fairseq_ext/*/model.py; }; then return; fi
    fairseq-train bin --user-dir "$USER_DIR" --arch "$@" --help >/dev/null || exit
}

# split_into_subwords SIZE SRC TGT [KIND]: splits text/ into joint subwords in bpe/, by byte-pair
# encoding unless KIND names another way.
split_into_subwords() {
    local size=(--size "$1")
    [[ "${4:-bpe}" != none ]] || size=() # words are not split
    run fairseq-ext subwords text --src "$2" --tgt "$3" --kind "${4:-bpe}" "${size[@]}" -o bpe
}

# binarize FOLDER SRC TGT FLAG...: makes fairseq's dictionaries and binary data of FOLDER, in bin/.
binarize() {
    local folder="$1" src="$2" tgt="$3"
    shift 3
    run rm -rf bin
    quietly preprocess.log fairseq-preprocess --user-dir "$USER_DIR" \
        --source-lang "$src" --target-lang "$tgt" --trainpref "$folder/train" \
        --validpref "$folder/valid" --testpref "$folder/test" --destdir bin --workers 2 "$@"
}

# train FOLDER FLAG...: runs fairseq-train on bin/, from FOLDER's last checkpoint if there is one.
# The terminal gets the progress bar and validation losses, FOLDER/train.log the settings,
# all losses and the plugin's messages.
train() {
    local folder="$1" launcher spread
    choose_launcher "$folder"
    spread_update "${@:2}"
    run mkdir -p "$folder"
    set -- "${launcher[@]}" fairseq-train bin --user-dir "$USER_DIR" \
        --save-dir "$folder" --log-file "$folder/train.log" "${spread[@]}"
    show "$@"
    dry && return
    "$@" > >(training_progress)
    [[ -s "$folder/checkpoint_last.pt" ]] || die "training left no $folder/checkpoint_last.pt."
}

# on_gpu: whether to train in half precision.
on_gpu() {
    ! dry && python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'
}

# training_progress: reads fairseq-train's log, and prints a line for each step and each validation.
# Below a validation stands the last sentence of at most 40 letters that --eval-bleu-print-samples
# showed, with its reference.
training_progress() {
    local step='^.*| \(epoch [0-9]*:  *[0-9]* \/ [0-9]* loss=[^,]*\),.* \(wps=[^,]*\),'
    local valid='^.*valid on .\([a-z]*\). subset | \(loss [0-9.]*\) ' last='num_updates \([0-9]*\).*'
    local hypothesis='^.*| example hypothesis: \(.*\)' reference='.*| example reference: \(.\{1,40\}\)$'
    sed -un -e "/$hypothesis/{N;s/$hypothesis\n$reference/      \1   (reference: \2)/;T;h;d}" \
        -e "s/$step.* left=\([0-9:]*\).*/  \1, \2, \3 left/p" -e "s/$step.*/  \1, \2/p" -e 't' \
        -e "s/$valid.*\(bleu [0-9.]*\) .*$last/  update \4: \1 \2, \3/p" \
        -e "s/$valid.*$last/  update \3: \1 \2/p" -e 'T' -e 'x;/./p;s/.*//;h' >&2
}

# cosine_schedule PAIRS BATCH EPOCHS WARMUP INIT LR MIN: prints flags for a learning rate that rises
# from INIT to LR and falls to MIN like a cosine, at the end of the epochs. An update is a batch of BATCH
# pairs, and no pair may be left out. fairseq restarts the cosine at LR times --lr-shrink, so the flags
# set this factor to MIN / LR.
cosine_schedule() {
    local updates=$((($1 + $2 - 1) / $2 * $3))
    (($4 < updates)) ||
        die "\`--warmup\` must be less than the $updates updates of the run, but is $4."
    echo --lr-scheduler cosine --warmup-updates "$4" --warmup-init-lr "$5" --lr "$6" --min-lr "$7" \
        --lr-period-updates $((updates - $4)) --lr-shrink "$(awk "BEGIN { printf \"%.17g\", $7 / $6 }")"
}

# average_last N: averages the last checkpoint and up to N checkpoints of updates before `updates`. The
# checkpoint of that update, if there is one, has the weights of the last and must not count twice.
average_last() {
    local files=()
    dry || mapfile -t files < <(find checkpoints -name 'checkpoint_*_*.pt' |
        sed -nE 's/.*_([0-9]+)\.pt$/\1 &/p' | sort -n |
        awk -v end="$updates" '$1 < end { print $2 }' | tail -n "$1")
    run fairseq-ext average --inputs "${files[@]}" checkpoints/checkpoint_last.pt \
        -o checkpoints/average.pt
}

# generate CHECKPOINT FILE FLAG...: translates the test set of bin/, or of the folder DATA_BIN; FILE
# is fairseq-generate's output. All systems use fairseq's generator, so that their speeds can be
# compared; ENGINE names another engine. FILE.log has its messages, and begins with the command.
generate() {
    local checkpoint="$1" file="$2" status=0
    shift 2
    set -- fairseq-generate "${DATA_BIN:-bin}" --user-dir "$USER_DIR" --path "$checkpoint" \
        --engine "${ENGINE:-fairseq}" --log-interval 1 "$@"
    show "$@" '>' "$file"
    dry && return
    { show "$@" && "$@" >"$file.tmp"; } 2>&1 | tee "$file.log" | translation_progress "$file" ||
        status=$?
    if [[ "$status" != 0 ]]; then
        tail -n 25 "$file.log" >&2
        return "$status"
    fi
    mv "$file.tmp" "$file"
}

# translation_progress FILE: reads fairseq-generate's messages, and prints how many batches are in
# FILE, at most every ten seconds.
translation_progress() {
    local line next=0
    while IFS= read -r line; do
        if [[ "$line" =~ progress_bar:.*" "([0-9]+" / "[0-9]+)" wps=" ]] && ((SECONDS >= next)); then
            log "$1: translated batch ${BASH_REMATCH[1]}"
            next=$((SECONDS + 10))
        fi
    done
}

# has_engine FILE: whether `generate` made FILE with the engine that it would use now. The speeds of two
# engines cannot be compared.
has_engine() { grep -qs -e "--engine ${ENGINE:-fairseq} " "$1.log"; }

# into FILE COMMAND...: like run, but if the command succeeds, FILE gets its output.
into() {
    local file="$1"
    shift
    show "$@" '>' "$file"
    dry && return
    "$@" >"$file.tmp"
    mv "$file.tmp" "$file"
}

# quietly FILE COMMAND...: like run, but FILE gets the command's output; if the command fails, the
# end of FILE is shown.
quietly() {
    local file="$1" status=0
    shift
    show "$@"
    dry && return
    "$@" >"$file" 2>&1 || status=$?
    if [[ "$status" != 0 ]]; then
        tail -n 25 "$file" >&2
        return "$status"
    fi
}
