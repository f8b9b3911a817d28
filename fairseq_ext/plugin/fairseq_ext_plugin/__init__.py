"""Register this package with fairseq: the folder for ``--user-dir``.

``fairseq-ext user-dir`` prints the folder. fairseq imports it as a top-level module, so no other
module may have its name.
"""

from fairseq_ext import register

register()
