"""Features: the engine, faster updates, sharding and asynchronous checkpoints in fairseq."""
