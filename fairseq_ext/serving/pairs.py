"""Load the served models, one for each pair of languages."""

import functools
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fairseq_ext.checkpoints import bundle
from fairseq_ext.decoding.loading import Translates, open_model
from fairseq_ext.decoding.search import Search
from fairseq_ext.decoding.stream import TextCodec
from fairseq_ext.engine.engine_model import SearchDefaults
from fairseq_ext.serving.batching import Sentence
from fairseq_ext.serving.requests import AUTO, Refusal
from fairseq_ext.serving.settings import Settings
from fairseq_ext.text.languages import matching_code
from fairseq_ext.text.sentences import UNSPLIT, SentenceSplitter, sentence_splitter
from fairseq_ext.utils import extras
from fairseq_ext.utils.errors import ConfigError


@dataclass(frozen=True)
class Served:
    """A loaded model, with functions that split its text and convert text to tokens and back."""

    translator: Translates  # translates lines of tokens
    codec: TextCodec  # converts text to tokens and back
    nbest: int  # number of translations that the search returns for a sentence
    splitter: SentenceSplitter = UNSPLIT  # splits lines into sentences

    def encode(self, sentences: Sequence[str]) -> list[Sentence]:
        tokens = [self.codec.encode(sentence) for sentence in sentences]
        return list(map(Sentence, tokens, self.translator.lengths(tokens)))


class Pairs:
    """The served models, by language pair."""

    def __init__(self, models: Mapping[str, Served]) -> None:
        self.models: dict[tuple[str, str], Served] = {}
        for name, model in models.items():
            pair = (model.translator.src, model.translator.tgt)
            if pair in self.models:
                raise ConfigError(
                    f"each model must have a pair of languages of its own, but {name} translates "
                    f"from {pair[0]} to {pair[1]} as an earlier one does."
                )
            self.models[pair] = model

    @functools.cached_property  # loading Babel takes a tenth of the server's start
    def languages(self) -> list[dict[str, Any]]:
        """The answer to ``/languages``: each language with its target languages."""
        codes = dict.fromkeys(code for pair in self.models for code in pair)
        return [
            {
                "code": code,
                "name": _name(code),
                "targets": [tgt for src, tgt in self.models if src == code],
            }
            for code in codes
        ]

    def detect(self, text: str) -> list[dict[str, Any]]:
        """Return how probable each served language is for a text, the most probable first.

        Each entry has the ``language`` and the ``confidence``, a probability in percent. Refuse the
        request (501) if py3langid is not installed, or knows no served language.
        """
        if self._identifier is None:
            codes = ", ".join(item["code"] for item in self.languages)
            installed = importlib.util.find_spec("py3langid") is not None
            reason = (
                f"py3langid does not know {codes}." if installed else extras.missing("py3langid")
            )
            raise Refusal(501, f"Languages cannot be detected: {reason}")
        return [
            {"language": code, "confidence": round(100 * probability, 1)}
            for code, probability in self._identifier.rank(text)
        ]

    @functools.cached_property
    def _identifier(self) -> Any:
        """py3langid's detector; None if it is not installed, or knows no served language."""
        if importlib.util.find_spec("py3langid") is None:
            return None
        from py3langid.langid import MODEL_FILE, LanguageIdentifier

        identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
        codes = [item["code"] for item in self.languages if item["code"] in identifier.labels]
        if not codes:
            return None
        identifier.set_languages(codes)
        return identifier

    def find(self, source: str, target: str) -> tuple[str, Served]:
        """Find the source language and the model for a request; refuse other languages (400).

        The source may be ``auto`` if only one language is translated to the target. Spelling and
        region may differ from the model's: ``de_AT`` finds a model for ``de``.
        """
        target = matching_code(target, {tgt for _, tgt in self.models}) or target
        sources = [src for src, tgt in self.models if tgt == target]
        if source == AUTO:
            if len(sources) > 1:
                listed = ", ".join(sources)
                fault = f"`source` must be one of {listed}; `auto` does not detect the language."
                raise Refusal(400, fault)
            source = sources[0] if sources else source
        source = matching_code(source, sources) or source
        model = self.models.get((source, target))
        if model is None:
            supported = ", ".join(f"{src} to {tgt}" for src, tgt in self.models)
            raise Refusal(400, f"{source:.40} to {target:.40} is not supported, but {supported}.")
        return source, model


def _name(code: str) -> str:
    """Return a language's English name if it has one and Babel is installed, else its code."""
    try:
        from babel import Locale, UnknownLocaleError
    except ImportError:
        return code
    try:
        return Locale.parse(code).get_display_name("en") or code
    except (UnknownLocaleError, ValueError):
        return code


def load(settings: Settings) -> Pairs:
    """Load the models of a server, each with its text steps (tokenization, subwords …).

    Each search returns all hypotheses of its beam, because requests may ask for alternatives.
    """

    def all_hypotheses(model_defaults: SearchDefaults) -> Search:
        search = settings.search.search(model_defaults)
        return replace(search, nbest=search.beam)

    served = {}
    have_dictionaries = [bundle.has_program(path) for path in settings.models]
    for path, is_complete in zip(settings.models, have_dictionaries, strict=True):
        # `--data` is for the checkpoints among the models; if there are none, it is refused.
        data = None if is_complete and not all(have_dictionaries) else settings.data
        model = open_model([path], data, (None, None), all_hypotheses)
        text = model.text()
        codec = TextCodec(text.encoder(), text.decoder())
        splitter = sentence_splitter(text.src, text.tgt) if settings.split_sentences else UNSPLIT
        served[str(path)] = Served(model.translator, codec, model.translator.search.nbest, splitter)
    return Pairs(served)
