"""Run programs in static memory on any torch device, in particular on GPUs."""
