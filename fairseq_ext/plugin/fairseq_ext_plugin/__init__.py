"""Register everything: this is the folder for ``--user-dir`` that ``fairseq-ext user-dir`` prints.

fairseq imports the folder as a top-level module, so no other module may have its name.
"""

from fairseq_ext import register

register()
