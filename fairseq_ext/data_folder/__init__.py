"""Folders of binarized data: checks that their files are as fairseq-preprocess wrote them.

- :mod:`~fairseq_ext.data_folder.manifest`: sizes and checksums of what was written;
- :mod:`~fairseq_ext.data_folder.indexed`: a dataset, that is an index and its data;
- :mod:`~fairseq_ext.data_folder.checked_files`: each file is read once, not at every start.

Nothing here needs fairseq or torch.
"""
