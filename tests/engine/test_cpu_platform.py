"""What verl takes for granted of an accelerator and a processor does not have."""

import engines
import pytest
import torch


def test_b6_the_saved_policy_stays_as_it_was_when_the_weights_are_updated(monkeypatch: pytest.MonkeyPatch) -> None:
    """In Separated mode every mini-batch has the log-probabilities of the policy before the first update."""
    from torch.distributed.tensor import Shard, distribute_tensor

    fsdp_utils = engines.load("verl.utils.fsdp_utils")
    monkeypatch.setattr(fsdp_utils, "fsdp2_sharded_save_to_cpu", fsdp_utils.fsdp2_sharded_save_to_cpu)
    engines.load("dapo_trainer.verl_adapter.cpu_platform")._copy_what_is_saved()
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = torch.distributed.init_device_mesh("cpu", (1,))
        model = torch.nn.Linear(2, 2, bias=False)
        model.weight = torch.nn.Parameter(distribute_tensor(torch.zeros(2, 2), mesh, [Shard(0)]))
        state, spec = fsdp_utils.fsdp2_sharded_save_to_cpu(model)
        with torch.no_grad():
            model.weight.add_(1.0)
        fsdp_utils.fsdp2_sharded_load_from_cpu(model, state, spec)
        assert model.weight.to_local().tolist() == [[0.0, 0.0], [0.0, 0.0]]
    finally:
        torch.distributed.destroy_process_group()
