"""A small model that begins each reply as a call, and goes on nearly at random."""

from __future__ import annotations

from pathlib import Path

import torch

from mcp_bridge.records import Tool
from sdk.policies.models import LoadedModel, save_model
from sdk.policies.protocol import Sampling
from sdk.policies.rendering import make_renderer
from sdk.records import Message, ToolCall


def save_caller(
    loaded: LoadedModel, tools: list[Tool], question: str, folder: Path, *, sampling: Sampling | None = None
) -> Path:
    """Teach the model how a call begins and to end after it, and nothing of what stands between; and save it."""
    renderer = make_renderer(loaded.tokenizer, family=loaded.family)
    call = Message(role="assistant", tool_calls=[ToolCall(id="c", name=tools[0].name, arguments={})])
    said = renderer.encode_reply(call, tools)
    opening = next(said[:end] for end in range(len(said)) if '"name":' in renderer.decode(said[:end]))
    closing = next(
        said[start:] for start in reversed(range(len(said))) if "</tool_call>" in renderer.decode(said[start:])
    )
    prompt = renderer.start([Message(role="user", content=question)], tools)
    optimizer = torch.optim.AdamW(loaded.model.parameters(), lr=1e-2)
    torch.manual_seed(0)
    for _ in range(60):
        between = torch.randint(100, len(loaded.tokenizer), (2, 24)).tolist()
        ids = torch.tensor([[*prompt, *opening, *one, *closing] for one in between])
        labels = torch.full_like(ids, -100)
        labels[:, len(prompt) : len(prompt) + len(opening)] = torch.tensor(opening)
        labels[:, -1] = closing[-1]
        loss = loaded.model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return save_model(loaded.model, loaded.tokenizer, folder, family=loaded.family, sampling=sampling)
