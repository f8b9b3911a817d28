#!/usr/bin/env bash
# Back-translation (Sennrich, Haddow and Birch 2016; https://arxiv.org/abs/1511.06709): a model of the
# other direction translates text of the target language, and its output becomes more source text.
#
#   baseline     trained on the pairs
#   reverse      trained on the pairs, target → source, or an existing model; translates mono.txt
#   mixed/       the pairs and the synthetic ones, whose sources begin with <BT> (Caswell, Chelba and
#                Grangier 2019; https://arxiv.org/abs/1906.06442)
#   augmented    trained on mixed/ for as many updates as the baseline
#
# With many pairs, noise in the synthetic sources helps more than their quality; --method adds noise
# (Edunov, Ott, Auli and Grangier 2018; https://arxiv.org/abs/1808.09381).
# shellcheck disable=SC2034,SC2329  # synthetic.sh and official.sh use them
# shellcheck source-path=SCRIPTDIR source=synthetic.sh
source "$(dirname "${BASH_SOURCE[0]}")/synthetic.sh"

pairs="" mono="" method=beam tag='<BT>' copies=1

usage() {
    cat <<HELP
Usage: bash recipes/back_translation.sh [OPTION]... [-- FAIRSEQ_TRAIN_FLAG...]

  --pairs N        use the corpus's first N pairs as parallel text, and only the target side
                   of the other pairs                              (10000; with --mono all)
  --mono FILE      monolingual text of the target language, instead of these other pairs
  --method M       search for synthetic sources: beam (of $beam), sampling, top10  ($method)
  --reverse MODEL  path or name of a bundle to translate with, instead of training a model
  --tag WORD       word before each synthetic source; '' for none  ($tag)
  --copies N       copies of the real pairs, to balance the synthetic pairs  ($copies)
$(synthetic_usage)
HELP
}

own_option() {
    case "$1" in
    --pairs | --mono | --method | --copies) set_option "$@" ;;
    --reverse) set_model "$@" ;;
    --tag) (($# > 1)) && tag="$2" ;;
    *) return 1 ;;
    esac
}

own_settings() {
    printf 'pairs=%s\nmono=%s %s\nmethod=%s\ntag=%s\ncopies=%s\nreverse=%s\n' "$pairs" "$mono" \
        "$([[ ! -f "$mono" ]] || cksum <"$mono")" "$method" "$tag" "$copies" "$model"
}

check_own() {
    [[ -n "$mono" || -n "$pairs" ]] || pairs=$((${SMOKE:-0} == 1 ? 300 : 10000))
    positive ${pairs:+--pairs} --copies
    [[ "$method" =~ ^(beam|sampling|top10)$ ]] ||
        die "\`--method\` must be beam, sampling or top10, but is \`$method\`."
    [[ -z "$mono" || -f "$mono" ]] || die "\`--mono\`: $mono does not exist; check the path."
    [[ -z "$mono" ]] || mono="$(absolute "$mono")"
}

# divide_corpus: makes parallel/ with the pairs, and mono.txt with the monolingual text.
divide_corpus() {
    local side text=(--data final --src "$src" --tgt "$tgt" --language "$tgt" --skip "$pairs")
    run rm -rf parallel
    run cp -rL final parallel
    if [[ -n "$pairs" ]]; then
        for side in "$src" "$tgt"; do
            into "parallel/train.$side" head -n "$pairs" "final/train.$side"
        done
    fi
    # Other text is checked here, before a model is trained to translate it.
    [[ -z "$mono" ]] || text=(--text "$mono")
    run fairseq-ext corpus monolingual "${text[@]}" --out mono.txt
}

main() {
    local search
    begin back-translation "$@"
    stage divide divide_corpus
    [[ -n "$model" ]] || system reverse parallel backwards
    case "$method" in
    beam) search=(--beam "$beam") ;;
    sampling) search=(--sampling) ;;
    top10) search=(--sampling --sampling-topk 10) ;;
    esac
    stage translate write_synthetic reverse mono.txt synthetic.txt "${search[@]}"
    stage mix mix_synthetic parallel synthetic.txt mono.txt --tag "$tag" --copies "$copies"
    system baseline parallel
    system augmented mixed
    compare_systems baseline augmented
}

main "$@"; exit
