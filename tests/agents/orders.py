"""An order desk for agents: a tool, scripts that use it, and how a rollout is played with an agent."""

import json

import sdk
from sdk.policies.scripted import ScriptedAgent


def get_order(order_id: str) -> str:
    """Read an order."""
    return f"order {order_id}: shipped"


QUESTION = "Where is order 4417?"
ANSWER = "Order 4417 is shipped."


def call(order_id="4417", name="get_order"):
    return sdk.ToolCall(id="", name=name, arguments={"order_id": order_id})


def looks_up_and_says():
    return ScriptedAgent([call(), ANSWER])


def says(*lines, name="scripted"):
    """A script by how many answers the conversation has had: each one's lines from the first on."""
    return ScriptedAgent(list(lines), name=name)


async def play(agent, model=None, *, tools=get_order, prompt=QUESTION, verifier=lambda rollout: 1.0, **options):
    model = looks_up_and_says() if model is None else model
    return await sdk.rollout_async(tools, prompt, model=model, agent=agent, verifier=verifier, **options)


def sampled_texts(rollout):
    """What the policy sampled, run by run, as text; of scripts, whose tokens are bytes."""
    texts = []
    for row in rollout.rows:
        run = bytearray()
        for token, sampled in zip([*row.completion_ids, 256], [*row.sampled, False], strict=True):
            if sampled and token < 256:
                run.append(token)
            elif run:
                texts.append(run.decode())
                run = bytearray()
    return texts


def as_text(calls):
    return "".join(f"<tool_call>{json.dumps({'name': c.name, 'arguments': c.arguments})}</tool_call>" for c in calls)
