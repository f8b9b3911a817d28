#!/usr/bin/env bash
# English → German: every system at matched size on one corpus, each for the same number of updates,
# with seeds, in one table.
#
#   corpus       real: LibreOffice's help, WMT's news of 2008 to 2013, Multi30k's captions and
#                Tatoeba, those of them that the folder of --from has (preprocess/real_text.py). Test
#                sets: news (2014 to 2018), whole help pages that were held out, captions (2016), and
#                further ones if the folder has them.
#                multi30k: its official lower-cased tokens.
#                10,000 joint merges, with which a model has some 2.5 million parameters
#   end          --updates; the learning rate falls to 0 along a cosine, so that the losses are flat
#                by then; the last checkpoint translates, with beam 5
#   rates        multi30k: each system has the peak rate at which it was best in
#                docs/results/multi30k_all; fairseq's convolutions and the deep transformer have the
#                transformer's rate. real: most systems try three rates, because at 0.002, its best
#                rate on Multi30k, the transformer learned next to nothing of this corpus in 6,000
#                updates. The validation text has captions, because on news alone the rate 0.002 had
#                the lowest loss
#   binary       as in multi30k_all.sh: a binary system starts from its float one
# shellcheck disable=SC2034,SC2329  # all_systems.sh uses the variables and calls the functions
# shellcheck source-path=SCRIPTDIR source=all_systems.sh
source "$(dirname "${BASH_SOURCE[0]}")/all_systems.sh"

corpus=real src=en tgt=de average=1 schedule_kind=cosine own_options="--corpus= --from=" from=""
flags+=(--no-epoch-checkpoints)
systems="transformer muse bmt lightconv dynamicconv linformer-32 gru muse-simple transformer-12-1 \
transformer-12-1-prenorm linformer-8 bmt-1 binary"
groups=("$systems" "${systems// /@2 }@2" "${systems// /@3 }@3" "transformer@4 muse@4 transformer@5 muse@5"
    "$(echo {ternary,binary-muse,ternary-muse}{,@2,@3})")
system_rates=([gru]=0.004 [bmt]=0.004 [bmt-1]=0.001 [binary]=0.001 [ternary]=0.001
    [binary-muse]=0.001 [ternary-muse]=0.001)
declare -A real_rates=([gru]=0.001,0.002,0.004 [bmt]=0.001,0.002,0.004 [bmt-1]=0.0005,0.001
    [binary]=0.0005,0.001 [ternary]=0.0005,0.001 [binary-muse]=0.0005,0.001
    [ternary-muse]=0.0005,0.001)

usage() {
    cat <<HELP
Usage: bash recipes/real_en_de.sh [OPTION]... [NAME]...

  NAME             system, or NAME@SEED for another seed; systems that it needs are added  (all)
                     1: $systems
                     2, 3: line 1 with seeds 2 and 3
                     4: ${groups[3]}
                     5: binary or ternary weights: three seeds of ternary, binary-muse, ternary-muse
  --group N        systems of line N above; may be repeated

  --corpus C       corpus: real or multi30k                         (real)
  --from DIR       folder with the corpus's files: for real see preprocess/real_text.py --help; for
                   multi30k data/task1/tok of github.com/multi30k/dataset  (multi30k: downloaded)
  --jobs N         trainings at a time, each in one thread on a CPU  (cores; 1 on a GPU)
  --updates N      updates of each training                         (10000; 5000 on a GPU)
  --rates A,B,C    peak learning rates to try for each system; the best after $grid updates goes on
                   (multi30k: one rate for each system, set in the script; real: three, for most
                   0.0005,0.001,0.002; on a GPU 0.0025,0.005,0.01)
  --device D       cpu or gpu                                       (gpu where there is one)
  --data DIR       folder of the corpus, made once                  (runs/data/CORPUS)
  --out DIR        folder for all output                            (runs/real-en-de or runs/real-multi30k)
  --help           this text

An update has 1,000 tokens on a CPU, 8,192 on a GPU (two batches, bf16). Ctrl-C stops all trainings,
and the same command continues them. The tables show every system that is finished in --out.
SMOKE=1 needs no files: it runs every step at a tiny size, with two systems. DRY_RUN=1 only prints
the commands.
HELP
}

check_own() {
    [[ "$corpus" =~ ^(real|multi30k)$ ]] ||
        die "\`--corpus\` must be real or multi30k, but is \`$corpus\`."
    mirror="$from"
}

use_smoke_settings() {
    smoke=1 grid=8 corpus=multi30k # its archives can be imitated
    ((${#names[@]})) || names=(lightconv muse@2)
    updates="${updates:-16}"
}

# choose_corpus: sets the names of the corpus's folder and of its test sets.
choose_corpus() {
    recipe=real-en-de
    if [[ "$corpus" == multi30k ]]; then
        recipe=real-multi30k corpus=multi30k_tok tests=(test test_2017_flickr test_2017_mscoco)
    else
        corpus=real_en_de buckets=10,20,30,40
        tests=(test test_help test_captions test_{newstest2019,newstest2020,tico-19}
            test_{2017_flickr,2017_mscoco,2018_flickr})
        [[ -n "$mirror" ]] || dry || die "\`--from\` must be the folder with the texts; --help says which."
    fi
}

prepare_corpus() {
    if [[ "$corpus" != real_en_de ]]; then
        prepare_official
        return
    fi
    run python "$REPO/preprocess/real_text.py" --from "$mirror" --out "$data"
    link_corpus
}

use_device() {
    if [[ "$1" == gpu ]]; then
        [[ -n "$rates" ]] || system_rates=()
        rates="${rates:-0.0025,0.005,0.01}" updates="${updates:-5000}"
    else
        if [[ "$corpus" == real_en_de && -z "$rates" ]]; then
            local system
            for system in "${!real_rates[@]}"; do system_rates[$system]="${real_rates[$system]}"; done
            rates=0.0005,0.001,0.002
        fi
        rates="${rates:-0.002}" updates="${updates:-10000}"
    fi
    # A short training warms up as well, and its rates are compared no later than at its end.
    ((warmup < updates)) || warmup=$((updates / 4))
    ((grid < updates)) || grid="$updates"
}

main "$@"; exit
