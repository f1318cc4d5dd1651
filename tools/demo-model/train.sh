#!/bin/sh
# The whole training: two float teachers side by side on one GPU, then the ternary model.
#   sh train.sh CORPUS_DIR OUT_DIR [TEACHER_SECONDS STUDENT_SECONDS]
# The default lengths are the shipped model's (about 13 minutes of one H200 in all, each
# run's compilation included); 190 and 250 take 9 minutes and cost about 4 % perplexity.
set -e
corpus=$1 out=$2
here=$(dirname "$0")
teach() {
    python3 "$here/train.py" "$corpus" "$out/teacher-$1" --seed "$1" --seconds "${2:-190}" \
        --float --embd 768 --layers 8 --ffn 2048 --dropout 0.3 --wd 0.5 --evals 10
}
teach 1 "$3" & one=$!
teach 2 "$3" & two=$!
wait $one
wait $two
python3 "$here/train.py" "$corpus" "$out" --seconds "${4:-485}" --decay 0.8 \
    --teacher "$out/teacher-1/teacher.pt" "$out/teacher-2/teacher.pt"
