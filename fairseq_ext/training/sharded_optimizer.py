"""``--zero-sharding os``: each process keeps the optimizer's state for a part of the weights.

This is stage 1 of ZeRO (Rajbhandari et al., 2020, https://arxiv.org/abs/1910.02054), in torch's
``ZeroRedundancyOptimizer``: gradients are summed as usual, and each process updates its own
parameters and sends them to the others. No parameter is divided, so sharding changes no results.
"""

from typing import Any

from torch.distributed.optim import ZeroRedundancyOptimizer


class ShardedOptimizer(ZeroRedundancyOptimizer):
    """An optimizer that splits its state among processes, and has the methods that fairseq calls.

    :meth:`state_dict` returns the whole state as the inner optimizer would, so that a checkpoint
    does not depend on how many processes wrote it.
    """

    disable_mem_eff_fp16_loading_hack = True
    """Keep fairseq from casting the state, which is float32 even if the weights are not."""

    def __getattr__(self, name: str) -> Any:
        """Return attributes such as ``supports_step_with_scale`` of the inner optimizer."""
        if name.startswith("supports"):
            return getattr(self.optim, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def broadcast_global_state_dict(self, state: Any) -> dict[str, Any]:
        """Send the whole state from the first process, which read the checkpoint, to all others."""
        from fairseq.distributed import utils

        return utils.broadcast_object(state, src_rank=0, group=self.process_group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load this process's part of a whole state, without the second copy that torch keeps."""
        super().load_state_dict(state_dict)
        self.state.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the state that ``consolidate_state_dict`` has collected from all processes.

        This whole state is not kept in memory: the next checkpoint collects it again.
        """
        state = super().state_dict()
        self._all_state_dicts: list[dict[str, Any]] = []
        return state

    def share(self) -> tuple[int, int]:
        """Return two numbers of weights: those whose state this process keeps, and all."""
        share, total = (
            sum(weight.numel() for group in groups for weight in group["params"])
            for groups in (self.optim.param_groups, self.param_groups)
        )
        return share, total
