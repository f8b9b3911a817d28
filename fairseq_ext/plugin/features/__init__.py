"""Features: the engine, faster updates and epochs, the time left, asynchronous checkpoints."""
