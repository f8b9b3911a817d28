"""The folder for fairseq's ``--user-dir``: importing it registers the architectures."""

from fairseq_ext import register

register()
