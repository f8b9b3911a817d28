"""Folders of binarized data: check and read their files, and write them in shards."""
