#!/usr/bin/env bash
# Sequence-level distillation (Kim and Rush 2016; https://arxiv.org/abs/1606.07947): a small model
# learns from a large one's translations of the training text, which are simpler than people's.
#
#   teacher      trained on the pairs, or an existing model
#   mixed/       the corpus's sources with the teacher's translations, found by beam search
#   baseline     the student, trained on the pairs
#   distilled    the student, trained on mixed/ for as many updates
# shellcheck disable=SC2034,SC2329  # synthetic.sh and official.sh use them
# shellcheck source-path=SCRIPTDIR source=synthetic.sh
source "$(dirname "${BASH_SOURCE[0]}")/synthetic.sh"

copies=0
# The student: half the width of the teacher, and one decoder layer.
student=(--encoder-layers 4 --decoder-layers 1 --encoder-embed-dim 64 --decoder-embed-dim 64
    --encoder-ffn-embed-dim 128 --decoder-ffn-embed-dim 128)

usage() {
    cat <<HELP
Usage: bash recipes/sequence_distillation.sh [OPTION]... [-- FAIRSEQ_TRAIN_FLAG...]

  --teacher MODEL  path or name of a bundle to translate with, instead of training a teacher
  --copies N       copies of the corpus's own pairs among the distilled ones  ($copies)
$(synthetic_usage)

Teacher and student have the same architecture; the student's sizes are
  ${student[*]}
HELP
}

own_option() {
    case "$1" in
    --copies) set_option "$@" ;;
    --teacher) set_model "$@" ;;
    *) return 1 ;;
    esac
}

check_own() {
    [[ "$copies" =~ ^[0-9]{1,3}$ ]] || die "\`--copies\` must be a whole number, but is \`$copies\`."
}

own_settings() { printf 'copies=%s\nstudent=%s\nteacher=%s\n' "$copies" "${student[*]}" "$model"; }

# as_student COMMAND...: runs the command with the student's sizes.
as_student() {
    local extra=("${student[@]}" "${extra[@]}")
    "$@"
}

main() {
    begin sequence-distillation "$@"
    [[ -n "$model" ]] || system teacher final
    stage sources run fairseq-ext corpus monolingual --data final --src "$src" --tgt "$tgt" \
        --language "$src" --out sources.txt
    stage translate write_synthetic teacher sources.txt synthetic.txt --beam "$beam"
    stage mix mix_synthetic final sources.txt synthetic.txt --copies "$copies"
    system baseline final as_student
    system distilled mixed as_student
    if [[ -n "$model" ]]; then
        compare_systems baseline distilled
    else
        compare_systems baseline distilled teacher
    fi
}

main "$@"; exit
