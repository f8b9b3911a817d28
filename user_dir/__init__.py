"""Give this folder to ``--user-dir``: importing it registers everything."""

from fairseq_ext import register

register()
