"""fairseq's commands and ours, as processes."""
