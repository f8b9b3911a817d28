"""Check that the files in a folder of binarized data are as fairseq-preprocess wrote them.

- :mod:`~fairseq_ext.data_folder.manifest`: sizes and checksums of the files as written;
- :mod:`~fairseq_ext.data_folder.indexed`: a dataset, which is an index and its data.

Nothing here needs fairseq or torch.
"""
