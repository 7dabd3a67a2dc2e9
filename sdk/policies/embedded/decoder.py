"""The model as one operation over the cache: the prompts of some rows, and the next tokens of others."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...errors import ModelError
from ..models.sliding_window import short_windows
from ..models.tolerance import beyond
from .attention import DecodeStep, JointStep, NextTokens, PrefillStep, RowCache, Segment, Step
from .model_weights import OwnWeights, check_supported
from .packed import EVERY_FORM, Packed, PackedLinear

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
