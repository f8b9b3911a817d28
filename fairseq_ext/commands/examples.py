"""An example of each subcommand, shown at the end of its ``--help``."""

from __future__ import annotations

EXAMPLES = {
    "user-dir": 'fairseq-train data-bin --user-dir "$(fairseq-ext user-dir)" --arch gru_attention',
    "doctor": "fairseq-ext doctor --patches",
    "corpus": "fairseq-ext corpus pairs --help",
    "corpus multi30k": "fairseq-ext corpus multi30k -o multi30k",  # all of the literature
    "corpus tatoeba": "fairseq-ext corpus tatoeba --src es --tgt en -o text",
    "corpus pairs": "fairseq-ext corpus pairs sentences.csv --header --columns german,english "
    "--src de --tgt en -o text",
    "corpus translations": "fairseq-ext corpus translations po/ --src en --tgt de -o pairs.tsv",
    "corpus contamination": "fairseq-ext corpus contamination test.en --training train.en",
    "corpus noise": "fairseq-ext corpus noise test.de --kind typos --seed 1 -o test.typos.de",
    "corpus monolingual": "fairseq-ext corpus monolingual --data text --src de --tgt en "
    "--language en -o plain.en",
    "corpus mix": "fairseq-ext corpus mix --data text --src de --tgt en --source back.de "
    "--target plain.en -o mixed --tag '<BT>'",
    "prepare": "fairseq-ext prepare --data text --src de --tgt en --tokenize -o prepared",
    "subwords": "fairseq-ext subwords prepared --src de --tgt en --size 8000 -o bpe",
    "binarize": "fairseq-ext binarize bpe --src de --tgt en --shards 20 -o data-bin",
    "models": "fairseq-ext models",
    "translate": "fairseq-ext translate --model tatoeba-es-en 'Hola. ¿Cómo estás?'",
    "serve": "fairseq-ext serve tatoeba-es-en tatoeba-en-es --port 5000",
    "demo": "fairseq-ext demo muse=tatoeba-es-en bmt=tatoeba-es-en-bmt-1",
    "hypotheses": "fairseq-ext hypotheses generated.txt --detokenize en -o hypotheses.en",
    "mbr": "fairseq-ext mbr generated.txt --num-candidates 32 --utility chrf -o chosen.en",
    "shortlist": "fairseq-ext shortlist data-bin -o shortlist.txt",
    "score": "fairseq-ext score --hyp hypotheses.en --ref test.en",
    "compare": "fairseq-ext compare --system gru=a.txt --system muse=b.txt --ref test.en",
    "plot": "fairseq-ext plot curves --help",
    "plot curves": "fairseq-ext plot curves --log gru=gru/train.log --log muse=muse/train.log "
    "-o curves.png",
    "plot alignment": "fairseq-ext plot alignment generated.txt --index 0 1 -o alignment.png",
    "plot lengths": "fairseq-ext plot lengths --system gru=a.txt --system muse=b.txt "
    "--ref test.en -o lengths.png",
    "average": "fairseq-ext average --dir checkpoints --last-epochs 5 -o average.pt",
    "bundle": "fairseq-ext bundle checkpoints/average.pt --numbers int8 -o my-model",
    "trim": "fairseq-ext trim en-de --for train.en train.de -o en-de-small",
    "push": "fairseq-ext push my-model my-name/my-model",
    "describe": "fairseq-ext describe tatoeba-es-en",
    "export": "fairseq-ext export tatoeba-es-en -o model.pt",
}
"""Example command lines by the names of subcommands."""
