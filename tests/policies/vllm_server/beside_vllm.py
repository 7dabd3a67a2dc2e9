"""Run by the Python that has vLLM: weights go out through vLLM's own classes for trainers. Prints what became of it.

    PYTHONPATH=. PYTHON_WITH_VLLM tests/policies/vllm_server/beside_vllm.py URL WEIGHTS.safetensors

Backends for CPUs take the places of NCCL and CUDA IPC in vLLM's factory; all the rest is what runs on GPUs.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import sys
import threading
import time
from typing import Any

os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # as in servers that take handles of CUDA IPC

import torch
import vllm
from safetensors.torch import load_file
from token_server import TokenServer
from vllm.distributed.weight_transfer import TrainerWeightTransferEngine, WeightSource, WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.base import TrainerInitInfo
from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferUpdateInfo
from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo, worker_init_payload
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerWeightTransferEngine, NCCLWeightTransferUpdateInfo

from sdk.errors import PolicyFailure
from sdk.policies.protocol import Sampling
from sdk.policies.vllm import VllmOptions, VllmPolicy, open_vllm, vllm_trainer
from sdk.policies.vllm import server_start as opening
from sdk.policies.vllm.published_weights import GpuPlane, SharedWeights

PROMPT = [1, 4093, 198, 22234, 338, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]


def sent_by(source: Any) -> Any:
    """As vLLM's engines iterate a source, in 0.32 and from 0.33 on."""
    return source.iter_full() if hasattr(WeightSource, "iter_full") else source


def metadata_of(source: Any) -> Any:
    return source.metadata if hasattr(WeightSource, "iter_full") else source.metadata()


class Sharing(TrainerWeightTransferEngine):
    """Sends what the source yields, through memory that the server's worker reads."""

    sent = 0

    @classmethod
    def trainer_init(cls, init_info: Any, *, client: Any, source: Any = None) -> Sharing:
        engine = cls(client=client, source=source)
        engine.memory = SharedWeights()
        client.init_weight_transfer_engine({"path": engine.memory.path, "mark": engine.memory.mark})
        return engine

    def send_weights(self) -> None:
        Sharing.sent += 1
        self.client.start_weight_update()
        state = dict(sent_by(self.source))
        declared = [(meta.name, meta.dtype, meta.shape) for meta in metadata_of(self.source)]
        assert declared == [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in state.items()]
        self.memory.take(state, f"sent-{Sharing.sent}")
        layout = dataclasses.asdict(self.memory.layout)
        del layout["size"]
        self.client.update_weights({"path": self.memory.path, "mark": self.memory.mark, **layout})
        self.client.finish_weight_update()


class Waiting(Sharing):
    """As NCCL does: it waits for the other side, whether that comes or not."""

    def send_weights(self) -> None:
        threading.Event().wait()


class Refused(Waiting):
    """And the other side was asked at the same time."""

    def send_weights(self) -> None:
        threading.Thread(target=self.client.update_weights, args=({},), daemon=True).start()
        super().send_weights()


def plug_in(name: str, engine: type[TrainerWeightTransferEngine]) -> None:
    info = dataclasses.make_dataclass(
        f"{name}Info", [], bases=(TrainerInitInfo,), namespace={"backend": name, "__annotations__": {}}
    )
    WeightTransferTrainerFactory.register_engine(name, engine)
    vllm_trainer.INIT_INFO[name] = lambda url, workers: info(rank=0)


async def opened_with(backend: str, url: str, use: Any) -> Any:
    opening.open_plane = lambda options: GpuPlane(backend, device="cpu")  # type: ignore[assignment]
    options = VllmOptions(urls=(url,), publish="transfer", recover_timeout_s=1.0)
    async with open_vllm("unused", options) as policy:
        return await use(policy)


async def published(url: str, weights: dict[str, torch.Tensor]) -> Any:
    """Twice: other weights first, which are compared with themselves, then these."""

    async def use(policy: VllmPolicy) -> Any:
        seconds = []
        for version, state in ((1, {n: t * 1.01 for n, t in weights.items()}), (2, weights)):
            started = time.monotonic()
            await asyncio.to_thread(policy.publish, state, version=version)
            seconds.append(time.monotonic() - started)
        completion = await policy.sample(PROMPT, sampling=Sampling(max_tokens=12), seed=3)
        return {**dataclasses.asdict(completion), "seconds": seconds, "sent": Sharing.sent}

    return await opened_with("sharing", url, use)


async def broken_off(backend: str, **fault: Any) -> Any:
    """What publishing says, and after how many seconds, where a transfer waits for a server that breaks."""
    with TokenServer() as server:

        async def use(policy: VllmPolicy) -> Any:
            for name, value in fault.items():
                setattr(server, name, value)
            started = time.monotonic()
            try:
                await asyncio.to_thread(policy.publish, {"weight": torch.ones(3)}, version=1)
            except PolicyFailure as error:
                return [str(error), time.monotonic() - started, server.mark, server.paused]
            raise AssertionError("the publication ended")

        return await opened_with(backend, server.url, use)


def told_to_servers(weights: dict[str, torch.Tensor]) -> Any:
    """What vLLM's trainer engines for GPUs tell, read as its workers read it."""
    info = vllm_trainer.INIT_INFO["nccl"]("http://127.0.0.1:8000", 2)
    payload = worker_init_payload(
        NCCLWeightTransferInitInfo(
            master_address=info.master_address,
            master_port=info.master_port,
            rank_offset=1,
            world_size=info.world_size,
            packed=info.packed,
        )
    )
    read = NCCLWeightTransferInitInfo(**json.loads(json.dumps(payload)))
    source = vllm_trainer.Source(lambda: weights, "cpu")
    meta = metadata_of(source)
    names = [name for name, _ in NCCLTrainerWeightTransferEngine._checked_iter(source, meta)]
    described = {
        "names": [one.name for one in meta],
        "dtype_names": [str(one.dtype).split(".")[-1] for one in meta],
        "shapes": [list(one.shape) for one in meta],
    }
    NCCLWeightTransferUpdateInfo(**described)
    handles = [{"GPU-1": (torch.float32, (2, 3), number)} for number in range(len(names))]
    update = dataclasses.asdict(IPCWeightTransferUpdateInfo(**described, ipc_handles=handles))
    over_http = json.loads(json.dumps(vllm_trainer.for_json(update)))
    return {
        "release": vllm.__version__,
        "world_size": read.world_size,
        "address": read.master_address,
        "port": read.master_port,
        "names": names,
        "dtype_names": described["dtype_names"],
        "handles_come_back": IPCWeightTransferUpdateInfo(**over_http).ipc_handles == handles,
    }


async def main() -> None:
    url, file = sys.argv[1:]
    weights = load_file(file)
    plug_in("sharing", Sharing)
    plug_in("waiting", Waiting)
    plug_in("refused", Refused)
    result = {
        "told": told_to_servers({name: tensor.bfloat16() for name, tensor in weights.items()}),
        "refused": await broken_off("refused", failing={"/update_weights": 500}),
        "died": await broken_off("waiting", healthy=False),
        "published": await published(url, weights),
    }
    print(json.dumps(result), flush=True)
    os._exit(0)  # threads that wait for a server would be waited for


if __name__ == "__main__":
    asyncio.run(main())
