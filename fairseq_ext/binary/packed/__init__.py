"""Files with one bit for each binarized weight, and translating from them.

A trained binary model (:mod:`fairseq_ext.binary`) as one safetensors file: signs as bits, a level
for each channel, the other numbers as floats, both dictionaries and the configuration. The file is
data alone, with a checksum over all of it; nothing in it is ever run.

``model_file.py`` reads and writes such files, ``pack.py`` makes them of checkpoints and
``unpack.py`` makes checkpoints of them, ``layers.py`` computes from bits, ``runtime.py`` lets
fairseq's commands load them, ``byte_counts.py`` says where the bytes are.

Letters: ``N`` output channels and ``K`` inputs of a layer, ``V`` words, ``C`` channels.
"""
