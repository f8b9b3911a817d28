"""The folder for ``--user-dir``, as ``fairseq-ext user-dir`` prints it: it registers everything.

fairseq imports the folder as a top-level module, so its name must not be that of another one.
"""

from fairseq_ext import register

register()
