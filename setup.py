"""Package metadata. Install fairseq first, as README.md says: its build needs torch present."""

from pathlib import Path

from setuptools import find_packages, setup

root = Path(__file__).parent
about: dict[str, str] = {}
exec((root / "fairseq_ext" / "version.py").read_text(encoding="utf-8"), about)

setup(
    name="fairseq-ext",
    version=about["__version__"],
    description="Linformer, MUSE, binarized Transformers and GRU attention on fairseq",
    long_description=(root / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    packages=find_packages(include=["fairseq_ext", "fairseq_ext.*"]),
    python_requires=">=3.10,<3.13",
    install_requires=[
        # fairseq itself is not listed: two distributions provide it and only one may be
        # installed (`fairseq-ext doctor` checks); the recipes install `fairseq-fixed`.
        "torch>=2.6",  # the first whose torch.load is safe by default
        "numpy>=1.26",
        "sacrebleu>=2.4",
        "sacremoses>=0.1.1",
        "subword-nmt>=0.3.8",
        "matplotlib>=3.8",
        "tqdm>=4.66",
    ],
    extras_require={
        "corpus": ["babel>=2.14", "num2words>=0.5.13", "tokenizers>=0.20"],
        "dev": [
            "pytest>=8",
            "pytest-xdist>=3.5",
            "ruff>=0.6",
            "babel>=2.14",
            "num2words>=0.5.13",
            "tokenizers>=0.20",
        ],
    },
    entry_points={"console_scripts": ["fairseq-ext = fairseq_ext.cli:main"]},
    classifiers=[
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
