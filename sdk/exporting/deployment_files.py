"""What stands beside an exported model: how it is started, as files of a few lines, and a README."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ModelError
from ..policies.vllm.vllm_build import FOR_CPUS, ON_GPUS, VllmBuild
from ..records import PROMPT_NAMES
from ..serving.vllm_command import ServedModel, as_typed, vllm_arguments

IMAGE = "vllm/vllm-openai:v0.32.0"
"""The release that toolbake is tested with."""
PORT = 8000


def vllm_line(model: ServedModel, *, build: VllmBuild = ON_GPUS) -> str:
    """The command that serves the model to this machine."""
    return shlex.join(as_typed(vllm_arguments(model, "model", host="127.0.0.1", port=PORT, build=build)))


def serve_script(model: ServedModel) -> str:
    return f"""#!/bin/sh
cd "$(dirname "$0")" && exec {vllm_line(model)} "$@"
"""


def _in_container(model: ServedModel) -> list[str]:
    return as_typed(vllm_arguments(model, "/model", host="0.0.0.0", port=PORT, build=ON_GPUS))


def dockerfile(model: ServedModel) -> str:
    return f"""FROM {IMAGE}
COPY model /model
# Clients must send the key in the variable VLLM_API_KEY; without one, vLLM asks for none.
ENTRYPOINT {json.dumps(_in_container(model))}
EXPOSE {PORT}
HEALTHCHECK --start-period=15m CMD curl --fail --silent http://127.0.0.1:{PORT}/health
"""


def compose(model: ServedModel) -> str:
    return f"""services:
  model:
    image: {IMAGE}
    entrypoint: {json.dumps(_escaped(_in_container(model)), ensure_ascii=False)}
    environment:
      VLLM_API_KEY: ${{VLLM_API_KEY:?set it to the key that clients send}}
    volumes: ["./model:/model:ro"]
    ports: ["127.0.0.1:{PORT}:{PORT}"]
    ipc: host
    restart: unless-stopped
    healthcheck:
      test: ["CMD", "curl", "--fail", "--silent", "http://127.0.0.1:{PORT}/health"]
      start_period: 15m
    deploy: {{resources: {{reservations: {{devices: [{{driver: nvidia, count: 1, capabilities: [gpu]}}]}}}}}}
"""


def _escaped(words: Sequence[str]) -> list[str]:
    return [word.replace("$", "$$") for word in words]


def kubernetes(model: ServedModel) -> str:
    name = re.sub(r"[^a-z0-9]+", "-", model.name.lower()).strip("-")[:50].strip("-") or "model"
    name = name if name[0].isalpha() else f"model-{name}"  # as a Service must be called (RFC 1035)
    health = f"httpGet: {{path: /health, port: {PORT}}}"
    return f"""apiVersion: apps/v1
kind: Deployment
metadata: {{name: "{name}"}}
spec:
  selector: {{matchLabels: {{app: "{name}"}}}}
  template:
    metadata: {{labels: {{app: "{name}"}}}}
    spec:
      containers:
        - name: vllm
          image: REGISTRY/{name}  # made of the Dockerfile beside this file
          env:
            - name: VLLM_API_KEY
              valueFrom: {{secretKeyRef: {{name: "{name}", key: api-key}}}}
          ports: [{{containerPort: {PORT}}}]
          resources: {{limits: {{nvidia.com/gpu: 1}}}}
          startupProbe: {{{health}, periodSeconds: 10, failureThreshold: 90}}
          readinessProbe: {{{health}, periodSeconds: 5}}
          livenessProbe: {{{health}, periodSeconds: 10, timeoutSeconds: 10, failureThreshold: 6}}
---
apiVersion: v1
kind: Service
metadata: {{name: "{name}"}}
spec:
  selector: {{app: "{name}"}}
  ports: [{{port: {PORT}}}]
"""


def modelfile(model: ServedModel, template: str, gguf_name: str) -> str:
    """Raises `ModelError` for a template that is not of the form that is written here for Ollama."""
    if "<|im_start|>" not in template or "<tool_call>" not in template:
        raise ModelError(
            f"{model.name!r} cannot be written for Ollama, whose templates are in another language: only models with "
            "turns in <|im_start|> and calls in <tool_call> are; export it with --to gguf, which keeps its template"
        )
    context = f"PARAMETER num_ctx {model.context_tokens}\n" if model.context_tokens is not None else ""
    sampling = model.sampling
    return f'''FROM ./{gguf_name}
{context}PARAMETER temperature {sampling.temperature:g}
PARAMETER top_p {sampling.top_p:g}
PARAMETER top_k 0
PARAMETER repeat_penalty 1
PARAMETER num_predict {sampling.max_tokens}
PARAMETER stop <|im_end|>
TEMPLATE """<|im_start|>system
{{{{ if .System }}}}{{{{ .System }}}}{{{{ else }}}}You are a helpful assistant.{{{{ end }}}}{{{{ if .Tools }}}}
Tools:
{{{{ range .Tools }}}}- {{{{ .Function }}}}
{{{{ end }}}}To use a tool, answer with <tool_call>{{"name":...,"arguments":{{...}}}}</tool_call>. \
Otherwise answer the user.{{{{ end }}}}<|im_end|>
{{{{ range .Messages }}}}{{{{ if ne .Role "system" }}}}<|im_start|>{{{{ .Role }}}}
{{{{ .Content }}}}{{{{ range .ToolCalls }}}}\
<tool_call>{{"name":"{{{{ .Function.Name }}}}","arguments":{{{{ .Function.Arguments }}}}}}</tool_call>\
{{{{ end }}}}<|im_end|>
{{{{ end }}}}{{{{ end }}}}<|im_start|>assistant
"""
'''


_STARTS = {
    "vllm": "`sh serve.sh` starts vLLM on this machine. Further options of vLLM may follow, such as `--api-key`.",
    "docker": f"""```bash
docker build -t NAME .
docker run --gpus all --ipc host -e VLLM_API_KEY -p 127.0.0.1:{PORT}:{PORT} NAME
```""",
    "compose": "`VLLM_API_KEY=... docker compose up`",
    "kubernetes": """Build the Dockerfile, push the image, write its name into `kubernetes.yaml`, then:

```bash
kubectl create secret generic NAME --from-literal=api-key=...
kubectl apply -f kubernetes.yaml
```

NAME is that of the Deployment.""",
    "gguf": """`{llama}`

`llama-quantize {gguf} OUT.gguf Q8_0` makes it smaller. Measure it again after that.""",
    "ollama": """`ollama create NAME -f Modelfile`. Ollama does not read the model's chat template. The one in the
Modelfile shows tools as Ollama writes them, and not as in training. Measure it again before you use it with tools.""",
}


def llama_words(model: ServedModel, file: str) -> list[str]:
    """The command by which llama.cpp serves a GGUF file to this machine."""
    sampling = model.sampling
    words = ["llama-server", "--model", file, "--jinja", "--temp", f"{sampling.temperature:g}"]
    words += ["--top-p", f"{sampling.top_p:g}", "--top-k", "0", "--min-p", "0"]
    return [*words, "--n-predict", str(sampling.max_tokens), "--ctx-size", str(model.context_tokens or 0)]


def check_line(model: ServedModel, limits: Mapping[str, Any]) -> str:
    """The command that measures the served model as the run did."""
    words = ["toolbake", "evaluate", "TOOLS", "TASKS", "--verifier", "VERIFIER"]
    words += ["--endpoint", f"http://127.0.0.1:{PORT}/v1", "--model", model.name]
    words += ["--temperature", f"{model.sampling.temperature:g}"]
    for name, value in {"max_turn_tokens": model.sampling.max_tokens, **limits}.items():
        words += ["--limit", f"{name}={json.dumps(value)}"]
    return shlex.join(words)


def readme(
    model: ServedModel,
    kinds: Sequence[str],
    *,
    weights: str,
    gguf_name: str,
    limits: Mapping[str, Any],
    report: str | None,
) -> str:
    """`weights`: their digest. `limits`: those of the run. `report`: the short form of its report."""
    sampling = model.sampling
    context = f"{model.context_tokens} tokens" if model.context_tokens is not None else "as config.json has it"
    parts = [f"# {model.name}", "Exported by `toolbake export`."]
    for kind in kinds:
        start = _STARTS[kind].format(gguf=gguf_name, llama=shlex.join(llama_words(model, gguf_name)))
        parts += [f"## {kind}", start]
    parts += [
        "## How it was measured",
        f"""| | |
| --- | --- |
| temperature | {sampling.temperature:g} |
| top_p | {sampling.top_p:g} |
| new tokens of a turn | {sampling.max_tokens} |
| context | {context} |
| tool-call parser of vLLM | `{model.call_parser}` |
| reasoning parser of vLLM | {f"`{model.reasoning_parser}`" if model.reasoning_parser else "none"} |
| tools in the prompt | {PROMPT_NAMES[model.tool_prompt]} |
| digest of the weights | `{weights}` |""",
        "`generation_config.json` has the sampling, and vLLM reads it: its `max_new_tokens` also limits requests that "
        "ask for more. Prompts must be rendered with `chat_template.jinja`. LoRA adapters are merged into the weights.",
    ]
    if model.tool_prompt != "full":
        parts.append(
            f"In training, prompts showed {PROMPT_NAMES[model.tool_prompt]} of the tools. Other servers show what "
            "clients send, so clients must send tools without descriptions and parameters."
        )
    if report is not None:
        parts.append(f"```text\n{report}\n```")
    parts += [
        "## vLLM's command line",
        f"```bash\n{vllm_line(model)}\n```",
        f"On a CPU, with the build for CPUs:\n\n```bash\n{vllm_line(model, build=FOR_CPUS)}\n```",
        "## Check a server",
        "The tasks and the verifier of the training, asked at the server. Where the tasks have a `split`, add "
        "`--split heldout`.",
        f"```bash\n{check_line(model, limits)}\n```",
    ]
    return "\n\n".join(parts) + "\n"
