"""TRL's losses on our rows: each is the formula of its paper, and options that it does not read are refused."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from fresh_models import fresh_model
from test_micro_batches import LOSSES, Nowhere, assert_same, row
from test_shared_prefix import SIZES
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, Qwen3MoeConfig
from trl import GRPOConfig, GRPOTrainer

import sdk
from sdk.policies.models import LoadedModel, load_model
from sdk.records import Rollout, Task, TokenRow, Verdict
from sdk.trainer.batch import Batch, BatchStats, TrainRow, build_batch
from sdk.trainer.config import TrainConfig
from sdk.trainer.grpo import RolloutTrainer, make_trainer

pytestmark = pytest.mark.timeout(120)

PROMPT = [5, 6, 7]
COMPLETIONS = {0.5: [8, 9, 10], -1.5: [8, 12]}
"""By advantage."""
DRIFTS = {0.5: [0.4, -0.3, 0.2], -1.5: [-0.5, 0.1]}
"""Log of the ratio of each token: how much more probable the trainer finds it than the sampler did."""
OPTIONS: dict[str, dict[str, Any]] = {
    "gspo": {"grpo.loss_type": "grpo", "grpo.importance_sampling_level": "sequence"},
    "cispo": {"grpo.loss_type": "cispo", "grpo.epsilon_high": 1.3},
    "sapo": {"grpo.loss_type": "sapo", "trl": {"sapo_temperature_pos": 1.5, "sapo_temperature_neg": 2.0}},
    "luspo": {"grpo.loss_type": "luspo"},
    "vespo": {"grpo.loss_type": "vespo", "trl": {"vespo_k_neg": 1.0, "vespo_lambda_neg": 0.5}},
}


@pytest.fixture
def model_and_tokenizer(tiny_model_dir: Path) -> Any:
    return load_model(str(tiny_model_dir), dtype="float32")


def log_probs(model: Any, completion: list[int]) -> torch.Tensor:
    """[T] of a completion after the prompt, as any forward gives them."""
    logits_TV = model(torch.tensor([PROMPT + completion])).logits[0, len(PROMPT) - 1 : -1]
    return logits_TV.log_softmax(-1).gather(1, torch.tensor(completion)[:, None])[:, 0]


def by_hand(name: str, model: Any) -> torch.Tensor:
    """The loss of both rows, written down from its paper; what a ratio weighs has no gradient unless it says so."""
    rows, tokens = len(COMPLETIONS), sum(map(len, COMPLETIONS.values()))
    loss = torch.zeros(())
    for advantage, completion in COMPLETIONS.items():
        logps_T = log_probs(model, completion)
        drift_T = torch.tensor(DRIFTS[advantage]) + logps_T - logps_T.detach()
        ratio_T = drift_T.exp()
        if name in ("gspo", "luspo"):  # one ratio a row: the geometric mean
            ratio = drift_T.mean().exp()
            clipped = ratio.clamp(0.8, 1.28)
            times = len(completion) if name == "luspo" else 1
            loss = loss - times * torch.min(ratio * advantage, clipped * advantage) / rows
        elif name == "sapo":
            tau = 1.5 if advantage > 0 else 2.0
            loss = loss - (torch.sigmoid(tau * (ratio_T - 1)) * 4 / tau * advantage).mean() / rows
        elif name == "cispo":
            loss = loss - (ratio_T.detach().clamp(max=1.3) * advantage * logps_T).sum() / tokens
        else:
            whole = math.exp(sum(DRIFTS[advantage]))
            k, scale = (2.0, 3.0) if advantage > 0 else (1.0, 0.5)
            phi = math.exp(scale + k * math.log(whole) - scale * whole)
            loss = loss - (phi * advantage * logps_T).sum() / tokens
    return loss


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("name", OPTIONS)
def test_a_loss_and_its_gradient_are_those_of_its_paper(
    model_and_tokenizer: Any, tmp_path: Path, name: str, shared: bool
) -> None:
    model = model_and_tokenizer.model
    rows = []
    for advantage, completion in COMPLETIONS.items():
        sampler = (log_probs(model, completion) - torch.tensor(DRIFTS[advantage])).tolist()
        tokens = TokenRow(
            prompt_ids=PROMPT,
            completion_ids=completion,
            sampled=[True] * len(completion),
            logprobs=sampler,
            versions=[0] * len(completion),
        )
        rows.append(TrainRow(tokens, advantage))
    model.zero_grad()
    expected = by_hand(name, model)
    expected.backward()
    gradients = [weights.grad.clone() for weights in model.parameters()]
    model.zero_grad()
    trainer = trainer_of(model_and_tokenizer, tmp_path, rows, **{"batching.shared_prefix": shared}, **OPTIONS[name])
    found = trainer.compute_loss(trainer.model, trainer.next_inputs())
    assert found.item() == pytest.approx(expected.item(), rel=1e-4)
    found.backward()
    assert_same([weights.grad for weights in trainer.model.parameters()], gradients)


def test_a_model_with_learned_positions_is_scored_where_its_sampler_had_each_token(
    model_and_tokenizer: Any, tmp_path: Path
) -> None:
    """By the padded forward, in which the rows of shorter prompts begin with padding."""
    torch.manual_seed(0)
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    dropout = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, **sizes, **dropout))
    groups = []
    for prompt in (PROMPT, PROMPT[:1]):
        rows = []
        for advantage, completion in COMPLETIONS.items():
            logits_TV = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
            logps_T = logits_TV.log_softmax(-1).gather(1, torch.tensor(completion)[:, None])[:, 0]
            tokens = TokenRow(
                prompt_ids=prompt,
                completion_ids=completion,
                sampled=[True] * len(completion),
                logprobs=logps_T.tolist(),
                versions=[0] * len(completion),
            )
            rows.append(TrainRow(tokens, advantage))
        groups.append(rows)
    batch = Batch(groups=groups, stats=BatchStats(scored_rows=4, scored_tokens=10))
    loaded = SimpleNamespace(model=model, tokenizer=model_and_tokenizer.tokenizer)
    options = {"batching.shared_prefix": False, "grpo.prompts_per_step": 2, "batching.micro_batches": 1}
    trainer = trainer_of(loaded, tmp_path, batch, **options)
    trainer.compute_loss(trainer.model, trainer.next_inputs())
    logged: dict[str, float] = {}
    trainer.log(logged)
    assert logged["sampler_gap/max"] < 1e-4


def trainer_of(
    loaded: Any, folder: Path, rows: list[TrainRow] | Batch, scored_rows: int | None = None, **options: Any
) -> RolloutTrainer:
    batch = rows if isinstance(rows, Batch) else scored(rows, scored_rows)
    trainer = make_trainer(
        loaded.model,
        loaded.tokenizer,
        config=TrainConfig.of({"grpo.num_generations": 2, "grpo.prompts_per_step": 1, "grpo.max_steps": 1, **options}),
        output_dir=str(folder),
        collect=lambda step: batch,
        publisher=Nowhere(),
        callbacks=[],
    )
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    return trainer


def scored(rows: list[TrainRow], scored_rows: int | None) -> Batch:
    tokens = sum(sum(row.tokens.sampled) for row in rows)
    return Batch(groups=[rows], stats=BatchStats(scored_rows=scored_rows or len(rows), scored_tokens=tokens))


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "sapo", "bnpo", "dapo"])
def test_where_a_rollout_was_cut_off_and_left_out_loss_and_gradient_are_those_that_trl_computes(
    tiny_model_dir: Path, tmp_path: Path, loss_type: str
) -> None:
    scores = {"first": 1.0, "second": 0.0, "cut": 0.2}
    theirs = fresh_model(tiny_model_dir)
    end = theirs.tokenizer.eos_token_id
    completions = {"first": [8, 9, end], "second": [8, 12, 13, end], "cut": [8, 10, 11, 14, 15]}
    arguments = GRPOConfig(
        str(tmp_path / "theirs"),
        loss_type=loss_type,
        mask_truncated_completions=True,
        scale_rewards="none",
        num_generations=3,
        per_device_train_batch_size=3,
        max_completion_length=64,
        report_to="none",
        use_cpu=True,
        bf16=False,
    )
    trl = GRPOTrainer(
        theirs.model,
        reward_funcs=lambda **_: [*scores.values()],
        args=arguments,
        train_dataset=Dataset.from_list([{"prompt": "p"}] * 3),
        processing_class=theirs.tokenizer,
    )
    # What it would sample, in the form in which it returns it.
    texts = ["one", "two", "three"]
    trl._generate = lambda _: ([PROMPT] * 3, [*completions.values()], None, texts, None, {}, None, [])
    trl.current_gradient_accumulation_steps = 1
    trl.model.train()
    expected = trl.compute_loss(trl.model, trl._generate_and_score_completions([{"prompt": "p"}] * 3))
    expected.backward()

    ours = fresh_model(tiny_model_dir)
    group = [
        Rollout(
            id=name,
            task=Task(prompt="p"),
            rows=[
                TokenRow(
                    prompt_ids=PROMPT,
                    completion_ids=completion,
                    sampled=[True] * len(completion),
                    logprobs=log_probs(ours.model, completion).tolist(),
                    versions=[0] * len(completion),
                )
            ],
            verdict=Verdict(score=scores[name]),
            stop_reason="token_limit" if name == "cut" else "answered",
        )
        for name, completion in completions.items()
    ]
    options = {"grpo.loss_type": loss_type, "grpo.scale_rewards": "none", "limits.max_tokens": 64}
    batch = build_batch([group], TrainConfig.of({"grpo.mask_truncated_completions": True, **options}))
    trainer = trainer_of(ours, tmp_path / "ours", batch, **options)
    found = trainer.compute_loss(trainer.model, trainer.next_inputs())
    found.backward()
    assert found.item() == pytest.approx(expected.item(), abs=1e-6)
    assert_same([one.grad for one in trainer.model.parameters()], [one.grad for one in trl.model.parameters()])


def test_rows_far_from_the_sampler_are_left_out_by_the_sampler_s_probabilities_also_where_ratios_are_corrected(
    model_and_tokenizer: Any, tmp_path: Path
) -> None:
    """Off-policy sequence masking (DeepSeek-V3.2): rows with an advantage below zero and a mean drift above."""
    model = model_and_tokenizer.model
    completion = COMPLETIONS[-1.5]
    sampler = (log_probs(model, completion) + 0.5).tolist()  # the trainer finds it less probable
    tokens = TokenRow(
        prompt_ids=PROMPT, completion_ids=completion, sampled=[True] * 2, logprobs=sampler, versions=[0, 0]
    )
    losses = []
    for threshold in (0.4, 0.6):
        options = {"importance_sampling_mode": "token_truncate", "off_policy_mask_threshold": threshold}
        trainer = trainer_of(model_and_tokenizer, tmp_path, [TrainRow(tokens, -1.0)], off_policy=options)
        losses.append(trainer.compute_loss(trainer.model, trainer.next_inputs()).item())
    assert losses == [0.0, pytest.approx(math.exp(-0.5), rel=1e-4)]


@pytest.mark.parametrize("budget", [None, 6])
@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "luspo"])
def test_experts_are_balanced_as_much_whatever_the_loss_and_the_parts(
    model_and_tokenizer: Any, tmp_path: Path, loss_type: str, budget: int | None
) -> None:
    """By its coefficient, times the mean over the parts; rows that are not forwarded, without signal, take no share."""
    rows = [TrainRow(row(PROMPT, completion).tokens, advantage) for advantage, completion in COMPLETIONS.items()]
    experts: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(Qwen3MoeConfig(**{**SIZES, "vocab_size": 512}, **experts)).float()
    losses = []
    for coefficient in (0.0, 0.5):
        loaded = LoadedModel(model_and_tokenizer.tokenizer, "tiny", model=model)
        options = {"trl": {"router_aux_loss_coef": coefficient}, "batching.tokens_per_micro_batch": budget}
        trainer = trainer_of(loaded, tmp_path, rows, scored_rows=5, **{"grpo.loss_type": loss_type}, **options)
        losses.append(trainer.compute_loss(trainer.model, trainer.next_inputs()).item())
        assert len(trainer._micro_batches[0]) == (2 if budget else 1)
    parts = [[0], [1]] if budget else [[0, 1]]
    balances = []
    for part in parts:
        tokens = [rows[number].tokens for number in part]
        ids = [[*one.prompt_ids, *one.completion_ids] for one in tokens]
        mask = torch.tensor([[1] * len(one) + [0] * (6 - len(one)) for one in ids])
        padded = torch.tensor([one + [0] * (6 - len(one)) for one in ids])
        output = model(input_ids=padded, attention_mask=mask, output_router_logits=True)
        balances.append(output.aux_loss.item() * len(part) / 2)
    assert losses[1] - losses[0] == pytest.approx(0.5 * sum(balances), rel=1e-4)


@pytest.mark.parametrize("loss_type", LOSSES)
def test_every_loss_of_trls_is_taken_by_its_name(loss_type: str) -> None:
    assert TrainConfig.of({"grpo.loss_type": loss_type, "grpo.epsilon_high": 5.0 if loss_type == "cispo" else 0.28})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"grpo.loss_type": "cispo"}, "epsilon_high is 0.28, and loss_type cispo takes .* set epsilon_high to 5.0"),
        (
            {"grpo.loss_type": "cispo", "grpo.epsilon_high": 5.0, "grpo.epsilon": 0.1},
            "epsilon does nothing in loss_type cispo",
        ),
        ({"grpo.loss_type": "sapo", "grpo.epsilon_high": 0.3}, "epsilon_high does nothing in loss_type sapo"),
        ({"grpo.loss_type": "vespo", "grpo.delta": 2.0}, "delta does nothing in loss_type vespo"),
        ({"trl": {"vespo_k_pos": 2.5}}, "trl.vespo_k_pos does nothing in grpo.loss_type dapo"),
        ({"grpo.loss_type": "vespo", "trl": {"sapo_temperature_pos": 2.0}}, "trl.sapo_temperature_pos does nothing"),
        (
            {"grpo.loss_type": "vespo", "off_policy.importance_sampling_mode": "token_truncate"},
            "would hide from grpo.loss_type vespo .* to none",
        ),
        (
            {"grpo.loss_type": "sapo", "off_policy.importance_sampling_mode": "token_mask"},
            "would hide from grpo.loss_type sapo .* to none",
        ),
        (
            {"grpo.importance_sampling_level": "sequence", "off_policy.importance_sampling_mode": "token_mask"},
            'would hide from grpo.importance_sampling_level "sequence" .* to none',
        ),
        ({"off_policy.off_policy_mask_threshold": -0.1}, "option off_policy.off_policy_mask_threshold is -0.1: "),
        ({"trl": {"use_bias_correction_kl": False}}, "does nothing while grpo.beta is 0"),
        ({"grpo.loss_type": "luspo", "grpo.importance_sampling_level": "token"}, "luspo weighs whole rows; leave"),
        (
            {"grpo.loss_type": "vespo", "grpo.importance_sampling_level": "sequence"},
            "vespo makes its ratios of rows",
        ),
        ({"grpo.importance_sampling_level": "turn"}, "is 'turn': Input should be 'token' or 'sequence'"),
        ({"grpo.loss_type": "gspo"}, "loss_type"),
    ],
)
def test_options_that_a_loss_does_not_read_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(sdk.ConfigError, match=said):
        TrainConfig.of(options)
