"""The model as two operations over the cache: compute the tokens of some rows, or one more token for each live row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...errors import ModelError
from .attention import DecodeStep, PrefillStep, Segment, Step
from .cache import RowCache
from .weights import OwnWeights, check_supported

PREFILL_TOKENS = 2048
"""The most tokens of one forward pass, which bounds the memory of activations."""


class Decoder:
    """Its own copy of a model, and the keys and values of everything it has read."""

    def __init__(self, model: Any) -> None:
        """Copies `model`. Raises `ModelError` for a model whose attention the engine cannot express."""
        check_supported(model)
        self.weights = OwnWeights(model)
        parameter = next(model.parameters())
        self.device: torch.device = parameter.device
        config = model.config.get_text_config(decoder=True)
        self.max_positions: int = config.max_position_embeddings
        self.vocabulary: int = model.get_input_embeddings().num_embeddings
        self.eos_ids = _eos_ids(model)
        self._config, self._dtype = config, parameter.dtype
        self.cache = RowCache(config, dtype=self._dtype, device=self.device)
        self._pack_and_compare()

    def reset(self) -> None:
        """Forget everything stored."""
        self.cache = RowCache(self._config, dtype=self._dtype, device=self.device)

    def prefill(self, segments: Sequence[Segment]) -> torch.Tensor:
        """Compute and store the segments; returns the logits after the last token of each, [segments, V]."""
        last: list[torch.Tensor] = []
        batch: list[Segment] = []
        ends: list[bool] = []
        room = PREFILL_TOKENS

        def flush() -> None:
            if batch:
                logits = self._prefill_batch(batch)
                last.append(logits[torch.tensor(ends, device=logits.device)])
            batch.clear()
            ends.clear()

        for segment in segments:
            done = 0
            while done < len(segment.token_ids):
                if room == 0:
                    flush()
                    room = PREFILL_TOKENS
                piece = segment.token_ids[done : done + room]
                batch.append(Segment(piece, segment.store, segment.past + done, segment.prefix))
                done += len(piece)
                ends.append(done == len(segment.token_ids))
                room -= len(piece)
        flush()
        return torch.cat(last)

    def decode(
        self,
        token_ids: Sequence[int],
        positions: Sequence[int],
        own_lengths: Sequence[int],
        prefixes: Sequence[tuple[torch.Tensor, Sequence[int]]],
    ) -> torch.Tensor:
        """One more token for each of the first rows of the cache; returns their logits, [R, V]."""
        self.cache.ensure(rows=len(token_ids), tokens=max(own_lengths) + 1)
        return self._forward(token_ids, positions, DecodeStep(self.cache.data, own_lengths, prefixes), 0)

    def _prefill_batch(self, segments: Sequence[Segment]) -> torch.Tensor:
        token_ids = [token for s in segments for token in s.token_ids]
        positions = [s.position + i for s in segments for i in range(len(s.token_ids))]
        ends = torch.tensor([len(s.token_ids) for s in segments], device=self.device).cumsum(0) - 1
        return self._forward(token_ids, positions, PrefillStep(list(segments), self.device), ends)

    def _forward(
        self, token_ids: Sequence[int], positions: Sequence[int], step: Step, keep: int | torch.Tensor
    ) -> torch.Tensor:
        logits: torch.Tensor = self.weights.model(
            input_ids=torch.tensor([token_ids], device=self.device),
            position_ids=torch.tensor([positions], device=self.device),
            use_cache=False,
            logits_to_keep=keep,
            step=step,
        ).logits
        return logits[0]

    def _pack_and_compare(self) -> None:
        """Set our attention, and hold it against the model's own on a few tokens. Raises `ModelError` if they differ.

        This finds any architecture whose attention does something that our steps do not know of.
        """
        name = type(self.weights.model).__name__
        with torch.inference_mode():
            ids = torch.randint(self.vocabulary, (1, 14), generator=torch.Generator().manual_seed(0)).to(self.device)
            expected = self.weights.model(input_ids=ids, use_cache=False).logits[0, 8:]
            try:
                self.weights.pack()
                found = self._logits_in_steps(ids[0].tolist())
            except (AttributeError, IndexError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
                raise ModelError(
                    f"the embedded engine cannot run {name}: {error}; choose a Llama, Qwen2, Qwen3 or SmolLM2 model, "
                    "or serve this model with vLLM"
                ) from error
            self.reset()
        limit = (1e-3 if expected.dtype == torch.float32 else 0.1) * (1 + float(expected.abs().max()))
        difference = float((found - expected).abs().max())
        if not difference <= limit:
            raise ModelError(
                f"the embedded engine's logits of {name} differ from the model's own by {difference:.3g} (at most "
                f"{limit:.3g} is allowed): its attention does something the engine cannot express; choose a Llama, "
                "Qwen2, Qwen3 or SmolLM2 model, or serve this model with vLLM"
            )

    def _logits_in_steps(self, ids: list[int]) -> torch.Tensor:
        """Logits after tokens 8 to 13: a shared prefix of 5, then 4 of a row's own, then 5 decoded one by one."""
        prefix = self.cache.separate(5)
        self.prefill([Segment(ids[:5], prefix, 0)])
        self.cache.ensure(rows=1, tokens=16)
        logits = [self.prefill([Segment(ids[5:9], self.cache.row(0), 0, prefix)])]
        logits += [self.decode([ids[i]], [i], [i - 5], [(prefix, [0])]) for i in range(9, 14)]
        return torch.cat(logits)


def _eos_ids(model: Any) -> frozenset[int]:
    """The tokens that end a turn, from the generation config and the config."""
    found: set[int] = set()
    for config in (model.generation_config, model.config.get_text_config(decoder=True)):
        ids = getattr(config, "eos_token_id", None)
        found |= set() if ids is None else {ids} if isinstance(ids, int) else set(ids)
    return frozenset(found)
