#!/usr/bin/env bash
# The engine's C code under AddressSanitizer and UBSan: every shipped model in every kind of numbers,
# and mutated copies of each, with right checksums. Ends with status 1 at the first finding.
#   tests/sanitizers.sh [MUTATED COPIES OF EACH MODEL, 200]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
copies="${1:-200}"
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT

cp -R fairseq_ext tests "$folder"
rm -rf "$folder"/fairseq_ext/shipped "$folder"/fairseq_ext/engine/_machine*.so
cp -RL fairseq_ext/shipped "$folder/fairseq_ext/shipped"
flags="-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g"
CFLAGS="$flags" LDFLAGS="$flags" python setup.py -q build_ext --force \
    --build-temp "$folder/objects" --build-lib "$folder" >/dev/null

libraries="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so)"
export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1
export PYTHONPATH="$folder" OMP_NUM_THREADS=1
cd "$folder"
for model in fairseq_ext/shipped/tatoeba-*; do
    for engine in native native-bf16 native-int8; do
        for search in "--beam 5" "--nbest 3 --beam 3" "--sampling --seed 1" \
            "--constraints=ordered" "--constraints=unordered --nbest 2"; do
            # shellcheck disable=SC2086  # several options
            LD_PRELOAD="$libraries" python -m fairseq_ext translate --model "$model" \
                --engine "$engine" $search "Hello." "¿Dónde está la biblioteca? No lo sé." "" \
                $'No.\tno no\tno\tno a' \
                >/dev/null
        done
    done
    echo "$model: mutated copies"
    LD_PRELOAD="$libraries" python -m tests.support.fuzz_engine "$model" --files "$copies"
done
echo "no finding"
