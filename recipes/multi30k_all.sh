#!/usr/bin/env bash
# Multi30k, English → German: every system at matched size, trained until its validation loss has
# stopped falling, in one table.
#
#   corpus       the official lower-cased tokens; 10,000 joint merges; tests of 2016 and, if their
#                files are available, of 2017 (Flickr and COCO), on which nothing is tuned
#   rates        each system is trained with the same three rates; the training with the lowest
#                validation loss after 2,000 updates continues. Further seeds use its rate
#   end          after 10 validations (epochs) without a lower loss, or --updates updates
#   translation  average of the last 10 epochs, beam 5
#   binary       a binary system starts from its float one, which is the paper's first stage: bmt-1
#                from bmt, bmt-6 (the third stage) from bmt-1. Both are distilled from bmt
# shellcheck disable=SC2034,SC2329  # all_systems.sh uses the variables and calls the functions
# shellcheck source-path=SCRIPTDIR source=all_systems.sh
source "$(dirname "${BASH_SOURCE[0]}")/all_systems.sh"

recipe=multi30k-all corpus=multi30k_tok src=en tgt=de patience=10 own_options=--mirror=
tests=(test test_2017_flickr test_2017_mscoco) # the first is that of 2016

# bmt comes early because bmt-1 waits for it.
groups=(
    "transformer muse bmt muse-simple linformer-32 linformer-8 gru bmt-1"
    "bmt-6 bmt-1-plain binary transformer@2 muse@2 transformer@3 muse@3"
    "$(echo {muse-simple,linformer-32,linformer-8,gru,bmt,bmt-1,bmt-6,bmt-1-plain,binary}@{2,3}) \
binary-muse binary-linformer"
    "$(echo {ternary,ternary-muse}{,@2,@3})"
)

usage() {
    cat <<HELP
Usage: bash recipes/multi30k_all.sh [OPTION]... [NAME]...

  NAME             system, or NAME@SEED for another seed; systems that it needs are added  (all)
                     1: ${groups[0]}
                     2: ${groups[1]}
                     3: seeds 2 and 3 of all other systems of lines 1 and 2; binary-muse and
                        binary-linformer
                     4: ternary instead of binary weights: three seeds of ternary and
                        ternary-muse
  --group N        systems of line N above; may be repeated

  --device D       cpu or gpu                                  (gpu where there is one)
  --jobs N         trainings at a time, each in one thread on a CPU (cores; 1 on a GPU)
  --rates A,B,C    peak learning rates to try for each system  (0.001,0.002,0.004; on a GPU
                                                               0.0025,0.005,0.01)
  --updates N      updates of the longest training             (30000; 8000 on a GPU)
  --mirror M       folder or address with the files of github.com/multi30k/dataset, data/task1/tok
  --data DIR       folder of the corpus, made once             (runs/data/$corpus)
  --out DIR        folder for all output                       (runs/multi30k-all)
  --help           this text

An update has 1,000 tokens on a CPU, 8,192 on a GPU (two batches, bf16). Ctrl-C stops all trainings,
and the same command continues them. The tables show every system that is finished in --out.
SMOKE=1 needs no files: it runs every step at a tiny size, with two or three systems. DRY_RUN=1 only
prints the commands, as if the first rate were the best.
HELP
}

use_smoke_settings() {
    smoke=1 grid=4 average=2 tests=(test test_2017_flickr)
    ((${#names[@]})) || names=(bmt-1 bmt@2)
    rates="${rates:-0.001,0.002}" updates="${updates:-16}"
}

use_device() {
    if [[ "$1" == gpu ]]; then
        rates="${rates:-0.0025,0.005,0.01}" updates="${updates:-8000}"
    else
        rates="${rates:-0.001,0.002,0.004}" updates="${updates:-30000}"
    fi
}

main "$@"; exit
