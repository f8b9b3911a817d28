"""Register this package with fairseq: the folder for ``--user-dir``.

``fairseq-ext user-dir`` prints the folder. fairseq imports it as a top-level module, so its name
must differ from the names of all other modules.
"""

from fairseq_ext import register

register()
