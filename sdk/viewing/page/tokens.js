// The tokens of a rollout, tinted by how unlikely the policy found what it chose.

import { el, figure, limited, plain, shown } from "./dom.js";
import { panel } from "./panels.js";
import { source, store } from "./store.js";
import { longText } from "./texts.js";

/** A panel that loads its content when it is opened. */
export function tokensPanel(rollout, row) {
  if (!rollout.has_tokens) return null;
  const content = el("div", { class: "tokens" });
  const details = el("details", { id: "tokens" }, el("summary", {}, "probability of each token"), content);
  details.addEventListener("toggle", async () => {
    if (!details.open || content.childNodes.length) return;
    content.replaceChildren(el("p", { class: "muted" }, "…"));
    try {
      content.replaceChildren(...tokenNodes(await source.tokens(store.generation, row.n)));
    } catch (error) {
      content.replaceChildren(el("p", { class: "bad" }, plain(error.message)));
    }
  });
  return panel("Tokens", details);
}

function tokenNodes(found) {
  const note = found.tokenizer ? null : el("p", { class: "warn" }, "No tokenizer of this model is on the machine: these are token ids.");
  return [note, ...found.rows.flatMap((one, number) => rowNodes(one, number, found.rows.length))].filter(Boolean);
}

function rowNodes(one, number, count) {
  const sampled = one.pieces.filter(([, chosen]) => chosen);
  const total = sampled.reduce((sum, [, , logprob]) => sum + logprob, 0);
  const readout = el("p", { class: "readout muted", "aria-live": "polite" }, "Point at a token for its probability.");
  const text = el("div", { class: "text code pieces", tabindex: 0, role: "group", "aria-label": "Tokens; arrow keys step through those that were sampled" },
    limited(one.pieces, 3000, pieceNode));
  const tell = (node) => {
    if (!node?.dataset.tell) return;
    text.querySelector(".told")?.classList.remove("told");
    node.classList.add("told");
    readout.textContent = node.dataset.tell;
  };
  text.addEventListener("pointerover", (event) => tell(event.target));
  text.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    const all = [...text.querySelectorAll("[data-tell]")];
    tell(all[Math.max(0, Math.min(all.length - 1, all.indexOf(text.querySelector(".told")) + by))]);
  });
  return [
    el("p", { class: "muted" }, count > 1 ? `row ${number + 1}: ` : "", `${figure(sampled.length)} sampled, mean log-probability `,
      sampled.length ? figure(total / sampled.length, 3) : "–"),
    el("details", {}, el("summary", {}, `prompt, ${figure(one.prompt_tokens)} tokens`), longText(one.prompt)), readout, text,
  ];
}

function pieceNode([text, chosen, logprob, version]) {
  if (!chosen) return el("span", { class: "given" }, shown(text));
  const probability = Math.exp(logprob);
  const tell = `“${plain(text)}” ${figure(100 * probability, 1)} %, log-probability ${figure(logprob, 3)}, weights of step ${version}`;
  const node = el("span", { class: "piece", "data-tell": tell }, shown(text));
  node.style.setProperty("--doubt", String(Math.min(1, -logprob / 3)));
  return node;
}
