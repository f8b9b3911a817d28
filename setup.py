"""Package metadata. Install fairseq first, as README.md says: its build needs torch present."""

import os
from pathlib import Path

from setuptools import Extension, find_packages, setup

root = Path(__file__).parent
about: dict[str, str] = {}
exec((root / "fairseq_ext" / "version.py").read_text(encoding="utf-8"), about)

# Called by ctypes: needs neither Python's nor torch's headers, and chooses its instruction set at
# run time. Without a compiler the installation goes on, and the products are done in torch.
kernels = "fairseq_ext/binary/kernels"
native = Extension(
    "fairseq_ext.binary.kernels._native",
    sources=[f"{kernels}/{name}.c" for name in ("kernels", "portable", "avx2", "avx512")],
    depends=[f"{kernels}/kernels.h"],
    extra_compile_args=["-std=c11", "-O3", "-ffp-contract=off", "-fvisibility=hidden"]
    if os.name == "posix"
    else [],
    optional=True,
)

pythons = sorted(about["PYTHONS"], key=lambda version: int(version.partition(".")[2]))
too_new = f"3.{int(pythons[-1].partition('.')[2]) + 1}"

setup(
    name="fairseq-ext",
    version=about["__version__"],
    description="Linformer, MUSE, binarized Transformers and GRU attention on fairseq",
    long_description=(root / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    packages=find_packages(include=["fairseq_ext", "fairseq_ext.*"]),
    package_data={"fairseq_ext.binary.kernels": ["*.c", "*.h"]},
    ext_modules=[native],
    python_requires=f">={pythons[0]},<{too_new}",
    install_requires=[
        # fairseq itself is not listed: two distributions provide it and only one may be
        # installed (`fairseq-ext doctor` checks); the recipes install `fairseq-fixed`.
        f"torch>={about['OLDEST_TORCH']}",
        "numpy>=1.26",
        "sacrebleu>=2.4",
        "sacremoses>=0.1.1",
        "subword-nmt>=0.3.8",
        "matplotlib>=3.8",
        "scipy>=1.11",
        "safetensors>=0.4.3",  # packed binary models
        "tqdm>=4.66",
        "filelock>=4.1",  # one training per folder
    ],
    extras_require={
        "corpus": ["babel>=2.14", "num2words>=0.5.13", "tokenizers>=0.20"],
        "subwords": ["sentencepiece>=0.2", "tokenizers>=0.20"],  # `fairseq-ext subwords --kind`
        "demo": ["gradio>=6.20"],  # `fairseq-ext demo`
        "benchmarks": ["ctranslate2>=4.6"],  # a peer of packed models in `benchmarks/packed.py`
        "mbr": ["mbrs>=0.1.8"],  # large; `fairseq-ext mbr` needs it for learned metrics alone
        "dev": [
            "pytest>=8",
            "pytest-xdist>=3.5",
            "hypothesis>=6.100",
            "ruff>=0.6",
            "babel>=2.14",
            "num2words>=0.5.13",
            "tokenizers>=0.20",
            "sentencepiece>=0.2",
        ],
    },
    entry_points={"console_scripts": ["fairseq-ext = fairseq_ext.cli:main"]},
    classifiers=[
        *(f"Programming Language :: Python :: {version}" for version in pythons),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
