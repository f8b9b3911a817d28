"""Model files with one bit for each binarized weight, and translation with them.

A trained binary model (:mod:`fairseq_ext.binary`) becomes one safetensors file: signs as bits, a
level for each channel, all other numbers as floats, both dictionaries and the configuration. The
file consists of data only, with a checksum over everything; nothing in it is ever run.

``model_file.py`` reads and writes such files, ``pack.py`` makes them from checkpoints,
``unpack.py`` makes checkpoints from them, ``layers.py`` computes with bits, ``runtime.py`` lets
fairseq's commands load them, and ``byte_counts.py`` counts the bytes of each part.

Letters: ``N`` output channels and ``K`` inputs of a layer, ``V`` words, ``C`` channels.
"""
