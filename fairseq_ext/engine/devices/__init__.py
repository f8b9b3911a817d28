"""Run the engine's programs in torch on any device, in particular on GPUs."""
