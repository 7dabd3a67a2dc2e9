"""In the engine of vLLM: answers to the agents of frameworks, token by token, where a model of random weights has none.

All else is vLLM's: the API, the template, its grammars, its parser of calls. Other requests are the model's.
"""

import json
import re

from clients import PLACE, QUESTION
from vllm.tokenizers import get_tokenizer
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor


def answers(prompt):
    """What may be said, the first that the grammar allows: a call as the model writes it, as vLLM wants required ones,
    and the arguments alone, as it wants those of a named one."""
    _, _, said = prompt.rpartition("<|im_start|>user\n")
    if "- get_order(" in prompt:
        if "<|im_start|>tool\n" in said:
            return ["It has been shipped."]
        name, arguments = "get_order", {"order_id": "4418" if "4418" in said else "4417"}
    else:
        (name,) = re.findall(r"- (final_result|Place)\(", prompt) or [None]
        arguments = PLACE
    alone = json.dumps(arguments)
    if name is None:
        return [alone]
    call, required = {"name": name, "arguments": arguments}, [{"name": name, "parameters": arguments}]
    return [f"<tool_call>{json.dumps(call)}</tool_call>", json.dumps(required), alone]


class ScriptedAnswers(AdapterLogitsProcessor):
    def __init__(self, vllm_config, device, is_pin_memory):
        super().__init__(vllm_config, device, is_pin_memory)
        self._tokenizer = get_tokenizer(vllm_config.model_config.tokenizer)

    def is_argmax_invariant(self):
        return False

    def new_req_logits_processor(self, params):
        chosen = []

        def say(prompt_ids, output_ids, logits):
            if not chosen:
                prompt = self._tokenizer.decode(prompt_ids)
                texts = answers(prompt) if QUESTION in prompt else []
                tokens = [[*self._tokenizer.encode(text), self._tokenizer.eos_token_id] for text in texts]
                allowed = [one for one in tokens if logits[one[0]] > float("-inf")]
                chosen.append(allowed[0] if allowed else [])
            for token in chosen[0][len(output_ids) :][:1]:
                logits[token] += 1e5
            return logits

        return say
