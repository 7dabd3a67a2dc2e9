"""The model as one operation over the cache: the prompts of some rows, and the next tokens of others.

It is the engine's own copy, so that training the original changes nothing that is sampled until new weights are
published: checked for what the engine can express, packed for the processor, replaceable.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ...errors import ModelError
from ..models.own_forward import beyond, short_windows
from .attention import ATTENTION_NAME, DecodeStep, JointStep, NextTokens, PrefillStep, RowCache, Segment, Step
from .packed import EVERY_FORM, Packed, PackedLinear, packed, packs

# The rotary frequencies of these change with the length of the text, so stored keys would grow stale.
_LENGTH_DEPENDENT_ROPE = {"dynamic", "longrope"}


def check_supported(model: Any) -> None:
    """Refuse what the engine's attention cannot express. Raises `ModelError` that names the feature."""
    config = model.config.get_text_config(decoder=True)
    found = []
    kinds = set(getattr(config, "layer_types", None) or [])
    if kinds - {"full_attention", "sliding_attention"}:
        found.append(f"layers of type {', '.join(sorted(kinds - {'full_attention', 'sliding_attention'}))}")
    for name in ("attn_logit_softcapping", "attention_chunk_size", "alibi", "kv_lora_rank"):
        if getattr(config, name, None):
            found.append(f"{name}={getattr(config, name)}")
    if getattr(model.config, "is_encoder_decoder", False):
        found.append("an encoder")
    rope_types = _rope_types(getattr(config, "rope_parameters", None) or {}) & _LENGTH_DEPENDENT_ROPE
    found += [f"rope_type={kind!r}" for kind in sorted(rope_types)]
    if not model.is_backend_compatible():
        found.append("an attention that cannot be exchanged")
    if found:
        raise ModelError(
            f"the embedded engine cannot run {type(model).__name__} with {'; '.join(found)}; it runs decoders with "
            "rotary positions and attention in full or in a sliding window (Llama, Qwen2, Qwen3, SmolLM2, Mistral, "
            "Gemma 3): choose one of these, or serve this model with vLLM"
        )


def _rope_types(parameters: Mapping[str, Any]) -> set[str]:
    """All values of `rope_type`; the parameters may be nested by layer type."""
    types = {value for key, value in parameters.items() if key == "rope_type"}
    for value in parameters.values():
        if isinstance(value, Mapping):
            types |= _rope_types(value)
    return types


class OwnWeights:
    """A copy of a model that nobody else holds."""

    def __init__(self, model: Any) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.model.zero_grad(set_to_none=True)
        self._tied = {name for name, _ in model.named_parameters(remove_duplicate=False)} - {
            name for name, _ in model.named_parameters()
        }
        buffers = dict(self.model.named_buffers(remove_duplicate=False))
        self._may_lack = self._tied | buffers.keys()
        """The names that a state need not have. Buffers that it has are taken, such as the experts' bias of GLM-4."""
        self._tensors: dict[str, torch.Tensor] = dict(self.model.named_parameters(remove_duplicate=False)) | buffers
        self._packed: dict[tuple[str, ...], PackedLinear] = {}
        """By the names of the linear layers that they stand for."""

    def pack(self, forms: Sequence[type[Packed]]) -> None:
        """Set our attention, and exchange what can be packed where that exists: on a CPU."""
        self.model.set_attn_implementation(ATTENTION_NAME)
        parameter = next(self.model.parameters())
        if parameter.device.type != "cpu" or not packs(parameter.dtype):
            return
        for name, module in list(self.model.named_modules()):
            if not _is_in(self.model, name, module):
                continue  # a part of what was exchanged before
            if (made := packed(module, forms)) is not None:
                self.model.set_submodule(name, made)
                self._keep(name, made)

    def _keep(self, name: str, made: Packed) -> None:
        for parts, linear in made.linears().items():
            names = tuple(f"{name}.{part}" if part else name for part in parts)
            self._packed[names] = linear
            for one, bias in zip(names, linear.biases, strict=True):
                if bias is not None:
                    self._tensors[f"{one}.bias"] = bias
                if f"{one}.weight" not in self._tied:
                    # The plain weight is freed; one that is tied to the embedding stays there.
                    del self._tensors[f"{one}.weight"]

    def check(self, state: Mapping[str, Any]) -> None:
        """Raises `ModelError` unless `state` has every weight in its shape, and nothing else."""
        shapes = {name: tuple(t.shape) for name, t in self._tensors.items()}
        for names, linear in self._packed.items():
            shapes |= {f"{name}.weight": shape for name, shape in zip(names, linear.shapes, strict=True)}
        missing = sorted(shapes.keys() - state.keys() - self._may_lack)
        unknown = sorted(state.keys() - shapes.keys())
        wrong = [n for n in sorted(shapes.keys() & state.keys()) if tuple(state[n].shape) != shapes[n]]
        if not missing and not unknown and not wrong:
            return
        parts = [f"{len(names)} {what}, first {names[0]}" for names, what in
                 ((missing, "missing"), (unknown, "unknown"), (wrong, "of another shape")) if names]  # fmt: skip
        raise ModelError(
            f"the published weights do not fit the engine's model: {'; '.join(parts)}; publish the state_dict() of "
            "the same model, with adapters merged"
        )

    def load(self, state: Mapping[str, Any]) -> None:
        """Copy a checked `state` in."""
        for weight in self.model.parameters():
            weight.untyped_storage().resize_(max(weight.untyped_storage().nbytes(), weight.nbytes))
        for name, tensor in state.items():
            if name in self._tensors:
                self._tensors[name].copy_(tensor)
        for names, linear in self._packed.items():
            weights = [f"{name}.weight" for name in names]
            linear.load([state[name] if name in state else self._tensors[name] for name in weights])

    def drop(self) -> None:
        """Free the weights; `load` brings others."""
        for linear in self._packed.values():
            linear.drop()
        for weight in self.model.parameters():
            weight.untyped_storage().resize_(0)


def _is_in(model: Any, name: str, module: nn.Module) -> bool:
    try:
        return model.get_submodule(name) is module
    except AttributeError:
        return False


PREFILL_TOKENS = 2048
"""The most tokens of segments in one forward pass, which bounds the memory of activations."""


class Decoder:
    """Its own copy of a model, and the keys and values of everything it has read."""

    def __init__(self, model: Any) -> None:
        """Copies `model`. Raises `ModelError` for a model whose attention the engine cannot express."""
        check_supported(model)
        parameter = next(model.parameters())
        self.device: torch.device = parameter.device
        config = model.config.get_text_config(decoder=True)
        self.max_positions: int = config.max_position_embeddings
        self.vocabulary: int = model.get_input_embeddings().num_embeddings
        self.eos_ids = _eos_ids(model)
        self._config, self._dtype = config, parameter.dtype
        self.cache = RowCache(config, dtype=self._dtype, device=self.device)
        self._pack_and_compare(model)

    def reset(self) -> None:
        """Forget everything stored."""
        self.cache = RowCache(self._config, dtype=self._dtype, device=self.device)

    def compute(self, segments: Sequence[Segment], new: NextTokens | None = None) -> torch.Tensor:
        """Compute and store the segments, and the next tokens of the rows of `new`, which belong to no segment.

        The cache has room for all of it (`RowCache.ensure`).
        Returns the logits after the last token of each segment and then after each of `new`, [segments + N, V]. What
        fits into one forward pass is computed in one: reading the weights is most of what a few tokens cost.
        """
        batches = list(_batches(segments))
        logits = [self._forward(batch, None) for batch in batches[:-1]]
        logits.append(self._forward(batches[-1] if batches else [], new))
        return torch.cat(logits) if len(logits) > 1 else logits[0]

    def _forward(self, batch: Sequence[_Piece], new: NextTokens | None) -> torch.Tensor:
        """Logits after the segments that end in this batch, then after each token of `new`."""
        segments = [piece.segment for piece in batch]
        token_ids = [token for s in segments for token in s.token_ids]
        positions = [s.position + i for s in segments for i in range(len(s.token_ids))]
        ends = itertools.accumulate(len(s.token_ids) for s in segments)
        keep = [end - 1 for end, piece in zip(ends, batch, strict=True) if piece.is_last]
        step: Step
        if new is None:
            step = PrefillStep(segments, self.device)
        else:
            before = len(token_ids)
            for next_ids, position in zip(new.token_ids, new.positions, strict=True):
                token_ids += next_ids
                positions += range(position, position + len(next_ids))
            keep += range(before, len(token_ids))
            decode = DecodeStep(self.cache.data, new)
            step = JointStep(PrefillStep(segments, self.device), decode) if segments else decode
        logits: torch.Tensor = self.weights.model(
            input_ids=torch.tensor([token_ids], device=self.device),
            position_ids=torch.tensor([positions], device=self.device),
            use_cache=False,
            logits_to_keep=0
            if len(keep) == len(token_ids)
            else torch.tensor(keep, device=self.device, dtype=torch.long),
            step=step,
        ).logits
        return logits[0]

    def _pack_and_compare(self, model: Any) -> None:
        """Copy the model, set our attention, and hold it against the model's own on a few tokens. Raises `ModelError`
        if they differ.

        This finds any architecture whose attention does something that our steps do not know of. Where packed parts do
        not get on with the rest of the model, its linear layers alone are packed.
        """
        forms: Sequence[type[Packed]]
        for forms in (EVERY_FORM, (PackedLinear,)):
            self.weights = OwnWeights(model)
            try:
                return self._compare(forms)
            except ModelError as error:
                refusal = error
                del self.weights  # not two copies at a time
        raise refusal

    def _compare(self, forms: Sequence[type[Packed]]) -> None:
        name = type(self.weights.model).__name__
        with torch.inference_mode(), short_windows(self.weights.model, 6):
            ids = torch.randint(self.vocabulary, (1, 14), generator=torch.Generator().manual_seed(0)).to(self.device)
            expected = self.weights.model(input_ids=ids, use_cache=False).logits[0, 8:]
            try:
                self.weights.pack(forms)
                found = self._logits_in_steps(ids[0].tolist())
            except (AttributeError, IndexError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
                raise ModelError(
                    f"the embedded engine cannot run {name}: {error}; choose a Llama, Qwen2, Qwen3, Mistral or Gemma 3 "
                    "model, or serve this model with vLLM"
                ) from error
            finally:
                self.reset()
        if too_far := beyond(found, expected, expected.dtype):
            raise ModelError(
                f"the embedded engine's logits of {name} differ from the model's own by {too_far[0]:.3g} (at most "
                f"{too_far[1]:.3g} is allowed): its attention does something the engine cannot express; choose a "
                "Llama, Qwen2, Qwen3, Mistral or Gemma 3 model, or serve this model with vLLM"
            )

    def _logits_in_steps(self, ids: list[int]) -> torch.Tensor:
        """Logits after tokens 8 to 13: a shared prefix of 5, 4 of a row's own, then 5 decoded, two of them at once."""
        prefix = self.cache.separate(5)
        self.compute([Segment(ids[:5], prefix, 0)])
        self.cache.ensure(rows=1, tokens=16)
        logits = [self.compute([Segment(ids[5:9], self.cache.row(0), 0, prefix)])]
        for begin, end in ((9, 10), (10, 12), (12, 13), (13, 14)):
            new = NextTokens([ids[begin:end]], [begin], [begin - 5], [(prefix, [0])])
            logits.append(self.compute([], new))
        return torch.cat(logits)


@dataclass(frozen=True)
class _Piece:
    """A segment, or as much of one as fits into a forward pass."""

    segment: Segment
    is_last: bool


def _batches(segments: Sequence[Segment]) -> Iterator[list[_Piece]]:
    """All segments in their order, in batches of at most `PREFILL_TOKENS` tokens."""
    batch: list[_Piece] = []
    room = PREFILL_TOKENS
    for segment in segments:
        done = 0
        while done < len(segment.token_ids):
            if room == 0:
                yield batch
                batch, room = [], PREFILL_TOKENS
            tokens = segment.token_ids[done : done + room]
            piece = Segment(tokens, segment.store, segment.past + done, segment.prefix)
            done += len(tokens)
            room -= len(tokens)
            batch.append(_Piece(piece, done == len(segment.token_ids)))
    if batch:
        yield batch


def _eos_ids(model: Any) -> frozenset[int]:
    """The tokens that end a turn, from the generation config and the config."""
    found: set[int] = set()
    for config in (model.generation_config, model.config.get_text_config(decoder=True)):
        ids = getattr(config, "eos_token_id", None)
        found |= set() if ids is None else {ids} if isinstance(ids, int) else set(ids)
    return frozenset(found)
