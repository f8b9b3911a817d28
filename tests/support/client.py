"""Translate with the public API, like another project's program that mypy checks."""

import fairseq_ext
from fairseq_ext.decoding.stream import Translation

model = fairseq_ext.load("tatoeba-es-en", threads=1)
translations: list[Translation] = model.translate(["Hola", "Adiós"], beam=4)
translation: Translation = model.translate("Hola")
text: str = translation.text
length: int = translation.text  # type: ignore[assignment]  # mypy knows that it is a text
scores: list[float] = model.score(["Hola"], [text])
print(model.src, model.tgt, text, scores, fairseq_ext.__version__)
