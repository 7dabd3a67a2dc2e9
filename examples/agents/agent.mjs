// An agent as a Node program, without packages: chat completions and MCP by fetch.
const { OPENAI_BASE_URL, OPENAI_API_KEY, OPENAI_MODEL, MCP_URL, MCP_API_KEY, TOOLBAKE_PROMPT } = process.env;

async function post(url, key, body) {
  const headers = {
    "content-type": "application/json",
    accept: "application/json, text/event-stream",
    authorization: `Bearer ${key}`,
  };
  const answer = await fetch(url, { method: "POST", headers, body: JSON.stringify(body) });
  const text = await answer.text();
  if (!answer.ok) throw new Error(`${answer.status}: ${text}`);
  const event = text.split("\n").find((line) => line.startsWith("data: "));
  return text ? JSON.parse(event ? event.slice("data: ".length) : text) : null;
}

let id = 0;
const mcp = async (method, params = {}) =>
  (await post(MCP_URL, MCP_API_KEY, { jsonrpc: "2.0", id: ++id, method, params })).result;

const clientInfo = { name: "agent", version: "1" };
await mcp("initialize", { protocolVersion: "2025-06-18", capabilities: {}, clientInfo });
const tools = (await mcp("tools/list")).tools.map(({ name, description, inputSchema }) => ({
  type: "function",
  function: { name, description, parameters: inputSchema },
}));
const messages = [{ role: "user", content: TOOLBAKE_PROMPT }];
for (;;) {
  const body = { model: OPENAI_MODEL, messages, tools };
  const { message } = (await post(`${OPENAI_BASE_URL}/chat/completions`, OPENAI_API_KEY, body)).choices[0];
  messages.push(message);
  if (!message.tool_calls) {
    console.log(message.content);
    break;
  }
  for (const call of message.tool_calls) {
    let text;
    try {
      const made = { name: call.function.name, arguments: JSON.parse(call.function.arguments) };
      text = (await mcp("tools/call", made)).content.map((part) => part.text).join("");
    } catch (error) {
      if (!(error instanceof SyntaxError)) throw error;
      text = `the arguments are not valid JSON: ${error.message}`; // the model's slip: it may call again
    }
    messages.push({ role: "tool", tool_call_id: call.id, content: text });
  }
}
