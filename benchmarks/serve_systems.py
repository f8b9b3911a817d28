"""Run one server for benchmarks/serve.py: ``fairseq-ext serve`` with the engine or CTranslate2.

``python benchmarks/serve_systems.py SYSTEM FOLDER SETTINGS`` prints the server's address. It serves
until a signal ends it.

- SYSTEM is one of :data:`SYSTEMS`, such as "engine int8".
- FOLDER has the models of all systems, which :func:`write` makes from one checkpoint.
- SETTINGS is a JSON object with ``search`` (``beam`` and ``max_len_b``) and ``threads``.

CTranslate2 also uses the languages, the tokenization and the dictionaries of the engine's bundle,
so the systems differ only in how they translate tokens.
"""

import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NUMBERS = {"fp32": "float32", "int8": "int8"}
"""Number formats of the weights: the engine's name for each, and CTranslate2's."""
ENGINE, CTRANSLATE2 = "engine", "CTranslate2"
SYSTEMS = [f"{name} {numbers}" for numbers in NUMBERS for name in (ENGINE, CTRANSLATE2)]


def write(folder: Path, checkpoint: Path, data: Path) -> None:
    """Write a checkpoint's model for the engine and for CTranslate2, in fp32 and in int8.

    ``data`` is the folder with the checkpoint's dictionaries.
    """
    from ctranslate2_models import convert
    from fairseq import checkpoint_utils

    import fairseq_ext
    from fairseq_ext.model import write as bundles

    fairseq_ext.register()
    models, _, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(checkpoint)], arg_overrides={"data": str(data)}
    )
    for numbers, kind in NUMBERS.items():
        bundle = folder / f"{ENGINE}-{numbers}"
        bundles.write(checkpoint, data, bundle, numbers=numbers)
        convert(models[0], task, folder / f"{CTRANSLATE2}-{numbers}", kind)


class Peer:
    """CTranslate2 with the methods of our ``EngineTranslator``, so that the server can use it.

    ``kind`` is the type of the weights, ``ours`` the EngineTranslator that this object replaces,
    and ``search`` the search options.
    """

    def __init__(self, path: Path, kind: str, ours: Any, search: Any, threads: int) -> None:
        import ctranslate2

        self.src, self.tgt, self.limit = ours.src, ours.tgt, ours.limit
        self.limit_name, self.counts = ours.limit_name, ours.counts
        self._search = search
        self._translator = ctranslate2.Translator(
            str(path), compute_type=kind, intra_threads=threads, inter_threads=1
        )

    def lengths(self, sentences: Sequence[str]) -> list[int]:
        return [len(sentence.split()) + 1 for sentence in sentences]

    def translate(self, sentences: Sequence[str]) -> list[list[Any]]:
        from fairseq_ext.decoding.search import Candidate

        results = self._translator.translate_batch(
            [sentence.split() for sentence in sentences],
            beam_size=self._search.beam,
            num_hypotheses=self._search.nbest,
            length_penalty=self._search.lenpen,
            max_decoding_length=self._search.max_len_b,
            max_input_length=0,
            return_scores=True,
        )
        return [
            [Candidate(" ".join(words), score) for words, score in zip(*columns, strict=True)]
            for columns in ((result.hypotheses, result.scores) for result in results)
        ]


def main() -> None:
    system, folder, settings = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    logging.basicConfig(level=logging.WARNING)
    from fairseq_ext.decoding.search import Search, SearchOptions
    from fairseq_ext.serving import pairs, server
    from fairseq_ext.serving.app import build
    from fairseq_ext.serving.settings import Settings
    from fairseq_ext.utils import address

    name, _, numbers = system.partition(" ")
    models = [folder / f"{ENGINE}-{numbers}"]
    server_settings = Settings(models, grace=1, search=SearchOptions(**settings["search"]))
    (served,) = pairs.load(server_settings).models.values()
    if name == CTRANSLATE2:
        search = Search(**settings["search"], nbest=served.nbest)
        path = folder / f"{CTRANSLATE2}-{numbers}"
        peer = Peer(path, NUMBERS[numbers], served.translator, search, settings["threads"])
        served = pairs.Served(peer, served.codec, served.nbest)
    application = build(pairs.Pairs({system: served}), server_settings)
    listener = address.listen("127.0.0.1", 0)
    print(address.url(listener), flush=True)
    server.serve(application, server_settings, listener)


if __name__ == "__main__":
    main()
