// Where the page gets its data: from its server, or from the blocks in its own file when it is an export.

async function answer(path, parameters, options) {
  const query = new URLSearchParams(parameters);
  const response = await fetch(`api/${path}?${query}`, options);
  if (!response.ok) throw Object.assign(new Error(await response.text()), { status: response.status });
  return response.json();
}

const posted = (value) => ({ method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(value) });

class ServerSource {
  live = true;
  runs() { return answer("runs"); }
  metrics() { return answer("metrics"); }
  labels() { return answer("labels"); }
  rows(generation, start) { return answer("rows", { generation, start }); }
  rollout(generation, n) { return answer("rollout", { generation, n }); }
  tokens(generation, n) { return answer("tokens", { generation, n }); }
  search(generation, text) { return answer("search", { generation, text }); }

  /** The characters of a cut text from `start` on; as many as the server likes to send. */
  text(generation, n, at, start) {
    return answer("text", [["generation", generation], ["n", n], ["start", start], ...at.map((step) => ["at", step])]);
  }

  save(generation, n, label) {
    return answer("labels", { generation, n }, posted(label));
  }

  lines(file) { return answer("lines", { file }); }
  line(file, line) { return answer("line", { file, line }); }
  change(file, line, change) { return answer("line", { file, line }, posted(change)); }
}

class EmbeddedSource {
  live = false;
  #blocks = new Map();

  async #block(name) {
    if (!this.#blocks.has(name)) {
      if (this.#blocks.size > 40) this.#blocks.clear();
      this.#blocks.set(name, unpacked(document.getElementById(`data-${name}`).textContent));
    }
    return this.#blocks.get(name);
  }

  async runs() { return (await this.#block("head")).runs; }
  async metrics() { return (await this.#block("head")).metrics; }
  async labels() { return (await this.#block("head")).labels; }
  async rows() { return this.#block("rows"); }
  async rollout(_, n) { return this.#one("rollouts", n); }
  async tokens(_, n) { return this.#one("tokens", n); }

  async #one(kind, n) {
    const starts = (await this.#block("head")).starts;
    let chunk = starts.length - 1;
    while (starts[chunk] > n) chunk -= 1;
    return (await this.#block(`${kind}-${chunk}`))[n - starts[chunk]];
  }

  async search(_, text) {
    const wanted = JSON.stringify(text).slice(1, -1).toLowerCase();
    const found = [];
    const starts = (await this.#block("head")).starts;
    for (let chunk = 0; chunk < starts.length; chunk += 1) {
      (await this.#block(`rollouts-${chunk}`)).forEach((one, place) => {
        if (JSON.stringify(one).toLowerCase().includes(wanted)) found.push(starts[chunk] + place);
      });
    }
    return found;
  }
}

async function unpacked(base64) {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

export function openSource() {
  return document.getElementById("data-head") ? new EmbeddedSource() : new ServerSource();
}
