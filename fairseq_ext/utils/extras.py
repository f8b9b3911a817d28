"""Refuse work for which an optional library is missing, and name the extra that installs it."""

import importlib.util

from fairseq_ext.utils.errors import EnvironmentProblem

EXTRAS: dict[str, str] = {
    "torch": "train",
    "fairseq": "train",
    "fairseq_cli": "train",
    "omegaconf": "train",
    "hydra": "train",
    "matplotlib": "plots",
    "scipy": "statistics",
    "tokenizers": "subwords",
    "sentencepiece": "subwords",
    "mbrs": "mbr",
    "ray": "ray",
    "zstandard": "zstd",
    "huggingface_hub": "hub",
    "ctranslate2": "ctranslate2",
    "py3langid": "language",
    "sentence_splitter": "sentences",
    "babel": "serve",
    "argcomplete": "completion",
}
"""The extra in pyproject.toml that installs each module."""


def need(*modules: str) -> None:
    """If a module is missing, raise an EnvironmentProblem that says how to install it."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise EnvironmentProblem(missing(module))


def missing(module: str) -> str:
    """Return a line that names the missing library and the command that installs it."""
    extra = EXTRAS.get(module.partition(".")[0])
    if extra is None:
        return f"`{module}` is not installed; `fairseq-ext doctor` says what to do."
    return f"`{module}` is not installed: `pip install 'fairseq-ext[{extra}]'`."
