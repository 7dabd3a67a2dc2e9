"""The folder of an export: of one model only, whole or not there, and made again as long as the model is the same.

Transformers and vLLM of the last two years can read it. Beside the model stand the files that start it, and a README.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from mcp_bridge.extras import require_extra

from ..errors import ConfigError, ModelError
from ..evaluation.report import Report
from ..evidence.saved_weights import files_digest
from ..policies.models.saving import fresh_folder, open_to_readers
from ..policies.vllm.in_server import IN_SERVER
from ..policies.vllm.server_command import FOR_CPUS, ON_GPUS, VllmBuild
from ..records import PROMPT_NAMES
from ..serving.vllm_server import KEY_FOR_ALL, ServedModel, as_typed, vllm_arguments
from ..traces import RunFolder
from ..traces.atomic_files import file_sha256
from .gguf_file import write_gguf

IMAGE = "vllm/vllm-openai:v0.32.0"
"""The release that toolbake is tested with."""
PORT = 8000
_DRAIN_S = 30
"""Seconds that requests in flight have when a container is told to end; vLLM aborts them at once by default."""
_UNROUTED_S = 10
"""Seconds until a cluster's nodes send a pod that ends no further requests."""
KEY_FILE = "toolbake_key.py"


def vllm_line(model: ServedModel, *, build: VllmBuild = ON_GPUS) -> str:
    """The command that serves the model to this machine."""
    return shlex.join(as_typed(vllm_arguments(model, "model", host="127.0.0.1", port=PORT, build=build)))


def serve_script(model: ServedModel) -> str:
    line = f"{vllm_line(model)} {shlex.join(KEY_FOR_ALL)}"
    return f"""#!/bin/sh
cd "$(dirname "$0")" && PYTHONPATH="$PWD${{PYTHONPATH:+:$PYTHONPATH}}" exec {line} "$@"
"""


def _in_container(model: ServedModel) -> list[str]:
    words = as_typed(vllm_arguments(model, "/model", host="0.0.0.0", port=PORT, build=ON_GPUS))
    return [*words, "--shutdown-timeout", str(_DRAIN_S), *KEY_FOR_ALL]


def dockerfile(model: ServedModel) -> str:
    return f"""FROM {IMAGE}
COPY model /model
COPY {KEY_FILE} /toolbake/
ENV PYTHONPATH=/toolbake
# Clients must send the key in the variable VLLM_API_KEY; without one, vLLM asks for none.
ENTRYPOINT {json.dumps(_in_container(model))}
EXPOSE {PORT}
HEALTHCHECK --start-period=15m CMD curl --fail --silent http://127.0.0.1:{PORT}/health
"""


def compose(model: ServedModel) -> str:
    words = [word.replace("$", "$$") for word in _in_container(model)]
    return f"""services:
  model:
    image: {IMAGE}
    entrypoint: {json.dumps(words, ensure_ascii=False)}
    environment:
      VLLM_API_KEY: ${{VLLM_API_KEY:?set it to the key that clients send}}
      PYTHONPATH: /toolbake
    volumes: ["./model:/model:ro", "./{KEY_FILE}:/toolbake/{KEY_FILE}:ro"]
    ports: ["127.0.0.1:{PORT}:{PORT}"]
    ipc: host
    restart: unless-stopped
    stop_grace_period: {_DRAIN_S + 15}s
    healthcheck:
      test: ["CMD", "curl", "--fail", "--silent", "http://127.0.0.1:{PORT}/health"]
      start_period: 15m
    deploy: {{resources: {{reservations: {{devices: [{{driver: nvidia, count: 1, capabilities: [gpu]}}]}}}}}}
"""


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
      enableServiceLinks: false  # a Service named "vllm" would set VLLM_PORT, which vLLM reads
      terminationGracePeriodSeconds: {_UNROUTED_S + _DRAIN_S + 20}
      containers:
        - name: vllm
          image: REGISTRY/{name}  # made of the Dockerfile beside this file
          env:
            - name: VLLM_API_KEY
              valueFrom: {{secretKeyRef: {{name: "{name}", key: api-key}}}}
          ports: [{{containerPort: {PORT}}}]
          lifecycle: {{preStop: {{exec: {{command: [sleep, "{_UNROUTED_S}"]}}}}}}  # as requests still come
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


def modelfile(model: ServedModel, template: str) -> str:
    """Raises `ModelError` for a template that is not of the form that is written here for Ollama."""
    if "<|im_start|>" not in template or "<tool_call>" not in template:
        raise ModelError(
            f"{model.name!r} cannot be written for Ollama, whose templates are in another language: only models with "
            "turns in <|im_start|> and calls in <tool_call> are; export it with --to gguf, which keeps its template"
        )
    context = f"PARAMETER num_ctx {model.context_tokens}\n" if model.context_tokens is not None else ""
    sampling = model.sampling
    return f'''FROM ./{gguf_name(model)}
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
    "vllm": "`sh serve.sh` starts vLLM on this machine; with a key in `VLLM_API_KEY`, clients must send it. Further "
    "options of vLLM may follow.",
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
    limits: Mapping[str, Any],
    report: str | None,
) -> str:
    """`weights`: their digest. `limits`: those of the run. `report`: the short form of its report."""
    sampling, gguf = model.sampling, gguf_name(model)
    context = f"{model.context_tokens} tokens" if model.context_tokens is not None else "as config.json has it"
    parts = [f"# {model.name}", "Exported by `toolbake export`."]
    for kind in kinds:
        start = _STARTS[kind].format(gguf=gguf, llama=shlex.join(llama_words(model, gguf)))
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
| calls | {"held to the tools and their schemas" if model.strict_tools else "as the model writes them"} |
| digest of the weights | `{weights}` |""",
        "`generation_config.json` has the sampling, and vLLM reads it. Prompts must be rendered with "
        "`chat_template.jinja`. LoRA adapters are merged into the weights.",
    ]
    if model.tool_prompt != "full":
        parts.append(
            f"In training, prompts showed {PROMPT_NAMES[model.tool_prompt]} of the tools. Other servers show what "
            "clients send, so clients must send tools without descriptions and parameters."
        )
    if model.strict_tools:
        parts.append(
            "`--tool-strict-level parameter` holds calls to the tools and their schemas. vLLM before 0.31 "
            "does not know it: leave it out there, and set `strict: true` in the tools, as for other servers."
        )
    if report is not None:
        parts.append(f"```text\n{report}\n```")
    parts += [
        "## vLLM's command line",
        f"```bash\n{vllm_line(model)}\n```",
        f"On a CPU, with the build for CPUs:\n\n```bash\n{vllm_line(model, build=FOR_CPUS)}\n```",
        "vLLM before 0.10 does not know `--exclude-tools-when-tool-choice-none`: leave it out there.",
        f"vLLM asks for its key at `/v1` alone, and other paths give the same answers. `{KEY_FILE}`, which the files "
        f"here load by `{shlex.join(KEY_FOR_ALL)}`, asks for it everywhere but at `/health` and `/metrics`.",
        "## Check a server",
        "The tasks and the verifier of the training, asked at the server. Where the tasks have a `split`, add "
        "`--split heldout`.",
        f"```bash\n{check_line(model, limits)}\n```",
    ]
    return "\n\n".join(parts) + "\n"


_MARK = re.compile(r"(\{%[-+]?)\s*(end)?generation\s*([-+]?%\})")
_OWN_CLASS = "TokenizersBackend"
"""What transformers 5 names a tokenizer that is all in its `tokenizer.json`."""


def copy_portable(source: Path, target: Path) -> None:
    """Copy a model's folder into one that is there. Raises `ModelError` where files are missing, or older readers
    cannot be told of it."""
    lost = [path.name for path in source.rglob("*") if path.is_symlink() and not path.exists()]
    lost += [name for name in ("config.json", "tokenizer_config.json") if not (source / name).is_file()]
    if lost:
        raise ModelError(
            f"{str(source)!r} lacks {lost[0]}; copy the whole folder there, or save model and tokenizer again with "
            "save_pretrained"
        )
    shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*"))
    open_to_readers(target)
    _rewrite(target / "config.json", _older_config)
    template = plain_template(chat_template(source))
    (target / "chat_template.jinja").write_text(template)
    _rewrite(target / "tokenizer_config.json", lambda config: {**_older_tokenizer(config), "chat_template": template})
    if (target / "generation_config.json").is_file():
        # transformers 4 makes settings `_from_model_config` anew from the model's configuration.
        _rewrite(
            target / "generation_config.json",
            lambda config: {name: value for name, value in config.items() if name != "_from_model_config"},
        )


def chat_template(folder: Path) -> str:
    """The template in a model's folder, by its tokenizer. Raises `ModelError` where it has several by name."""
    file = folder / "chat_template.jinja"
    found = (
        file.read_text()
        if file.is_file()
        else json.loads((folder / "tokenizer_config.json").read_text()).get("chat_template")
    )
    if not isinstance(found, str):
        raise ModelError(
            f"{str(folder)!r} has not one chat template; write the one that it was trained with to chat_template.jinja"
        )
    return found


def plain_template(template: str) -> str:
    """Without the marks of what the assistant said, which only transformers knows. What it renders stays the same."""
    return _MARK.sub(lambda mark: f"{mark[1]} {'endif' if mark[2] else 'if true'} {mark[3]}", template)


def _rewrite(file: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    file.write_text(json.dumps(change(json.loads(file.read_text())), indent=2, ensure_ascii=False) + "\n")


def _older_config(config: dict[str, Any]) -> dict[str, Any]:
    """With the names that transformers 4 reads, beside those of 5."""
    changed = dict(config)
    if isinstance(config.get("text_config"), dict):
        changed["text_config"] = _older_config(config["text_config"])
    rope = config.get("rope_parameters")
    if isinstance(rope, dict) and "rope_theta" in rope:
        changed["rope_theta"] = rope["rope_theta"]
        if "partial_rotary_factor" in rope:
            changed["partial_rotary_factor"] = rope["partial_rotary_factor"]
        if rope.get("rope_type", "default") != "default":
            changed["rope_scaling"] = {name: value for name, value in rope.items() if name != "rope_theta"}
    if "dtype" in config:
        changed["torch_dtype"] = config["dtype"]
    return changed


def _older_tokenizer(config: dict[str, Any]) -> dict[str, Any]:
    changed = dict(config)
    if config.get("tokenizer_class") == _OWN_CLASS:
        changed["tokenizer_class"] = "PreTrainedTokenizerFast"
    if isinstance(config.get("extra_special_tokens"), list):
        changed["additional_special_tokens"] = changed.pop("extra_special_tokens")
    for name in ("is_local", "local_files_only"):  # of the machine that wrote it
        changed.pop(name, None)
    return changed


Kind = Literal["vllm", "docker", "compose", "kubernetes", "gguf", "ollama"]
KINDS: tuple[Kind, ...] = get_args(Kind)
MARKER = "toolbake-export.json"
WITH_MODEL = frozenset({"vllm", "docker", "compose", "kubernetes"})
WITH_GGUF = frozenset({"gguf", "ollama"})


def export(
    model_dir: str | os.PathLike[str], to: Kind, output_dir: str | os.PathLike[str], *, call_parser: str | None = None
) -> Path:
    """Write a model for other servers, with how to start it and how it was measured; the folder.

    `model_dir`: the folder of a run or of a model. `to`: one of `KINDS`. `output_dir`: a new or an empty folder, or one
    with exports of the same weights, which stay. `call_parser`: vLLM's parser of the model's calls, where toolbake does
    not know it.

    Raises `ConfigError` for another kind or a folder that holds something else, such as a file that was edited since,
    and `ModelError` for a model that cannot be read or cannot be written in that form.
    """
    require_extra("serve", "toolbake export", ConfigError)
    if to not in KINDS:
        raise ConfigError(f"there is no export to {to!r}; choose one of {', '.join(KINDS)}")
    model = ServedModel.read(model_dir, call_parser=call_parser)
    source, target = Path(model.source), Path(output_dir).expanduser().resolve()
    if not source.is_dir():
        raise ConfigError(f"{os.fspath(model_dir)!r} is not a folder; give the folder of a run or of a model")
    if target.is_relative_to(source.resolve()):
        raise ConfigError(f"{str(target)!r} is in the model's own folder and would be exported too; choose another")
    weights = _weights(source)
    kinds = _with_earlier(target, to, model.name, weights)
    with fresh_folder(target) as made:
        _write(made, source, model, kinds)
        limits, report = _of_run(Path(model_dir).expanduser())
        text = readme(model, kinds, weights=weights, limits=limits, report=report)
        (made / "README.md").write_text(text)
        digests = {name: _digest(made / name) for name in _things_in(made)}
        marker = {"model": model.name, "weights": weights, "kinds": kinds, "files": digests}
        (made / MARKER).write_text(json.dumps(marker, indent=2) + "\n")
        if _with_earlier(target, to, model.name, weights) != kinds:
            raise ConfigError(f"another export was written to {str(target)!r} meanwhile; run this one again")
    return target


def _weights(folder: Path) -> str:
    if not (files := sorted(folder.glob("*.safetensors"))):
        raise ConfigError(
            f"the weights in {str(folder)!r} are not in safetensors; save the model again with "
            "sdk.policies.models.save_model"
        )
    return files_digest(files)


def _with_earlier(target: Path, to: Kind, name: str, weights: str) -> list[str]:
    """All kinds that the folder shall have. Raises `ConfigError` where something would be lost."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return [to]
    try:
        earlier = json.loads((target / MARKER).read_text())
        same, kinds, digests = earlier["weights"] == weights, set(earlier["kinds"]), dict(earlier["files"])
        held = earlier["model"]
    except (OSError, ValueError, KeyError, TypeError):
        found = f"its {MARKER} is damaged" if (target / MARKER).is_file() else f"it has no {MARKER}"
        raise ConfigError(
            f"{str(target)!r} is there already and holds no export: {found}; choose a new or an empty folder"
        ) from None
    if not same or held != name:
        what = "these weights under another name" if same else "other weights"
        raise ConfigError(
            f"{str(target)!r} holds an export of {what} ({held}); choose another folder for {name}, or remove that one"
        )
    there = [name for name in _things_in(target) if name != MARKER]
    if others := [name for name in there if name not in digests]:
        raise ConfigError(f"{str(target)!r} holds {others[0]}, which is of no export; move it to another folder")
    if edited := [name for name in there if _digest(target / name) != digests[name]]:
        raise ConfigError(
            f"{str(target)!r} holds {', '.join(edited)}, edited since the export, and all files are written anew; "
            f"move {'it' if len(edited) == 1 else 'them'} to another folder, or choose another one for this export"
        )
    return [kind for kind in KINDS if kind in kinds | {to}]


def _things_in(folder: Path) -> list[str]:
    """All but folders with something in them: also links and empty folders, which somebody may have put there."""
    kept = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir() or not any(path.iterdir()))
    return sorted(str(path.relative_to(folder)) for path in kept)


def _digest(path: Path) -> str:
    """What tells a change: of a file its SHA-256. An export has no links, so a link in a file's place is a change."""
    return "link" if path.is_symlink() else "folder" if path.is_dir() else file_sha256(path)


def run_of(place: Path) -> Path | None:
    """The folder of the run, given that or its model's; None for a folder of another model."""
    place = place.resolve()  # "." and links have no name that tells
    folder = place.parent if place.name == "model" else place
    return folder if (folder / "run.json").is_file() else None


def _of_run(place: Path) -> tuple[dict[str, Any], str | None]:
    """The limits that the run was measured with, and the short form of its report; nothing of a folder of a model."""
    folder = run_of(place)
    if folder is None:
        return {}, None
    run = RunFolder.open_to_read(folder)
    report = run.report_json
    text = str(Report.model_validate_json(report.read_text())) if report.is_file() else None
    return dict(run.config["train"]["limits"]), text


def gguf_name(model: ServedModel) -> str:
    return re.sub(r"[^\w.-]+", "-", model.name) + ".gguf"


def _write(made: Path, source: Path, model: ServedModel, kinds: Sequence[str]) -> None:
    template = plain_template(chat_template(source))
    wanted = set(kinds)
    texts = {}
    if "vllm" in wanted:
        texts["serve.sh"] = serve_script(model)
    if wanted & {"docker", "kubernetes"}:
        texts["Dockerfile"] = dockerfile(model)
    if "compose" in wanted:
        texts["compose.yaml"] = compose(model)
    if "kubernetes" in wanted:
        texts["kubernetes.yaml"] = kubernetes(model)
    if "ollama" in wanted:
        texts["Modelfile"] = modelfile(model, template)
    for name, text in texts.items():
        (made / name).write_text(text)
    if wanted & WITH_MODEL:
        shutil.copyfile(IN_SERVER / KEY_FILE, made / KEY_FILE)
        (made / "model").mkdir()
        copy_portable(source, made / "model")
    if wanted & WITH_GGUF:
        write_gguf(source, made / gguf_name(model), name=model.name, sampling=model.sampling, template=template)
