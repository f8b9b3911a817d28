"""An example of each subcommand, shown at the end of its ``--help``."""

from __future__ import annotations

EXAMPLES = {
    "user-dir": 'fairseq-train data-bin --user-dir "$(fairseq-ext user-dir)" --arch gru_attention',
    "doctor": "fairseq-ext doctor --verbose",
    "corpus": "fairseq-ext corpus pairs --help",
    "prepare": "fairseq-ext prepare --data text --src de --tgt en --out prepared --tokenize",
    "subwords": "fairseq-ext subwords prepared --src de --tgt en --size 8000 -o bpe",
    "binarize": "fairseq-ext binarize bpe --src de --tgt en --shards 20 -o data-bin",
    "models": "fairseq-ext models",
    "translate": "fairseq-ext translate --model tatoeba-es-en 'Hola. ¿Cómo estás?'",
    "serve": "fairseq-ext serve tatoeba-es-en tatoeba-en-es --port 5000",
    "demo": "fairseq-ext demo tatoeba-es-en muse=tatoeba-es-en-muse",
    "hypotheses": "fairseq-ext hypotheses generated.txt --detokenize en -o hypotheses.en",
    "mbr": "fairseq-ext mbr generated.txt --num-candidates 32 --utility chrf -o chosen.en",
    "shortlist": "fairseq-ext shortlist data-bin -o shortlist.txt",
    "score": "fairseq-ext score --hyp hypotheses.en --ref test.en",
    "compare": "fairseq-ext compare --system gru=a.txt --system muse=b.txt --ref test.en",
    "plot": "fairseq-ext plot curves --help",
    "average": "fairseq-ext average --dir checkpoints --last-epochs 5 -o average.pt",
    "bundle": "fairseq-ext bundle checkpoints/average.pt --numbers int8 -o my-model",
    "push": "fairseq-ext push my-model my-name/my-model",
    "describe": "fairseq-ext describe tatoeba-es-en",
    "export": "fairseq-ext export tatoeba-es-en -o model.pt",
}
"""Command line by the name of the subcommand."""
