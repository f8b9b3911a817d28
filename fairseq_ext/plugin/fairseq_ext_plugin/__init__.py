"""What ``fairseq-ext user-dir`` prints, for ``--user-dir``: importing it registers everything.

fairseq imports the folder as a top-level module, so its name must not be that of another one.
"""

from fairseq_ext import register

register()
