#!/usr/bin/env bash
# From spa-eng.zip to the models that come with the plugin: text, training, bundles, scores. (The
# shipped tatoeba-es-en-bmt-1 is a smaller BMT-1, which tatoeba.sh made.)
#   bash recipes/shipped_models.sh spa-eng.zip OUT SECONDS [NAME...]
# NAME is es-en, en-es or bmt-1 (default: all three). SECONDS is the length of the training: 240 on
# one H100; on a CPU 7200 or more, with a core for each model and smaller batches (MAX_TOKENS=1500).
# OUT gets text/, bin/, trained/ and the bundles in models/.
set -euo pipefail

usage="usage: shipped_models.sh ARCHIVE OUT SECONDS [NAME...]"
archive=${1:?$usage} out=${2:?$usage} seconds=${3:?$usage}
names=("${@:4}")
((${#names[@]})) || names=(es-en en-es bmt-1)
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
about="Trained by recipes/shipped_models.sh. The training text is sentences that the members of \
tatoeba.org wrote and translated (CC BY 2.0 FR), from the collection of manythings.org/anki. A phrase \
book, names and clock times were added to this text. For scores, 1,500 pairs of the same collection were held \
out of the training text, together with all their near-duplicates."
mkdir -p "$out/models"

if [[ ! -e "$out/text/counts.json" ]]; then # written last
    rm -rf "$out/text"
    python "$here/../preprocess/shipped_text.py" --archive "$archive" --out "$out/text"
fi
for direction in es-en en-es; do
    [[ ! -e "$out/bin/$direction/codes" ]] || continue # copied last
    rm -rf "$out/bin/$direction" # of an interrupted run
    joined=(--joined-dictionary)
    [[ "$direction" == es-en ]] || joined+=(--srcdict "$out/bin/es-en/dict.es.txt")
    pieces="$out/text/pieces/$direction"
    fairseq-preprocess --user-dir "$here/timed_cosine" -s "${direction%-*}" -t "${direction#*-}" \
        --trainpref "$pieces/train" --validpref "$pieces/valid" --testpref "$pieces/test" \
        "${joined[@]}" --destdir "$out/bin/$direction"
    cp "$pieces/text.json" "$pieces/codes" "$out/bin/$direction/"
done

bash "$here/shipped_train.sh" "$out/bin" "$out/trained" "$seconds" "${names[@]}"

# bundle NAME CHECKPOINT DIRECTION NUMBERS: writes a bundle, scores it, and writes it again with these
# scores in its card.
bundle() {
    local model="$out/models/$1" side="${3#*-}" plain="$out/trained/$2-unscored"
    fairseq-ext bundle "$out/trained/$2.pt" --data "$out/bin/$3" --numbers "$4" -o "$plain"
    fairseq-ext translate --model "$plain" --input "$out/text/reference/test.${3%-*}" \
        -o "$out/trained/$2.hyp"
    fairseq-ext score --hyp "$out/trained/$2.hyp" --ref "$out/text/reference/test.$side" \
        --json "$out/trained/$2.json"
    fairseq-ext bundle "$plain" --scores "$out/trained/$2.json" --about "$about" \
        --licence cc-by-2.0 -o "$model"
}

for name in "${names[@]}"; do
    if [[ "$name" == bmt-1 ]]; then
        bundle tatoeba-es-en-bmt-1 bmt-1 es-en bits-int8
    else
        bundle "tatoeba-$name" "$name" "$name" int8
    fi
done
