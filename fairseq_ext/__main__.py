"""``python -m fairseq_ext``: the command ``fairseq-ext``."""

from fairseq_ext.cli import main

if __name__ == "__main__":
    main()
