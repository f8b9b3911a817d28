"""``--zero-sharding os``: each process keeps the optimizer's state for a part of the weights.

This is stage 1 of ZeRO (Rajbhandari et al., 2020, https://arxiv.org/abs/1910.02054), by torch's
``ZeroRedundancyOptimizer``. Gradients are summed over processes as usual. Each process updates some
of the parameters and sends them to the others. Each parameter belongs to one process, so sharding
changes no results.
"""

from typing import Any

from torch.distributed.optim import ZeroRedundancyOptimizer


class ShardedOptimizer(ZeroRedundancyOptimizer):
    """An optimizer of fairseq (the inner optimizer) whose state is split among processes.

    :meth:`state_dict` returns the whole state in the format of the inner optimizer, so that a
    checkpoint does not depend on the number of processes.
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
        """Load this process's part of a whole state.

        torch's own method would also keep the whole state in memory.
        """
        super().load_state_dict(state_dict)
        self.state.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state, which ``consolidate_state_dict`` has collected before.

        The whole state is not kept in memory; the next checkpoint collects it again.
        """
        state = super().state_dict()
        self._all_state_dicts: list[dict[str, Any]] = []
        return state

    def share(self) -> tuple[int, int]:
        """Return the number of weights whose state this process keeps, and that of all weights."""
        share, total = (
            sum(weight.numel() for group in groups for weight in group["params"])
            for groups in (self.optim.param_groups, self.param_groups)
        )
        return share, total
