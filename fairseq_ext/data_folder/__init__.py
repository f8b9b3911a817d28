"""Folders of binarized data: what fairseq-preprocess wrote into them, and whether it is still so.

- :mod:`~fairseq_ext.data_folder.manifest`: sizes and checksums of what was written;
- :mod:`~fairseq_ext.data_folder.indexed`: a dataset, that is an index and its data;
- :mod:`~fairseq_ext.data_folder.checked_files`: each file is read once, not at every start.

Nothing here needs fairseq or torch.
"""
