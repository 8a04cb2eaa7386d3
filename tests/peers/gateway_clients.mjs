// One question to a gateway by a client of Node: node gateway_clients.mjs PACKAGES CLIENT URL QUESTION true|false
// Prints {"text": ...} or {"error": ...} as JSON.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [packages, client, baseURL, question, streams] = process.argv.slice(2);
const require = createRequire(`${packages}/`);
const load = (name) => import(pathToFileURL(require.resolve(name)).href);
globalThis.AI_SDK_LOG_WARNINGS = false; // they would go to stdout
const stream = streams.toLowerCase() === "true";

async function byOpenai() {
  const { default: OpenAI } = await load("openai");
  const asked = { model: "support", messages: [{ role: "user", content: question }], stream };
  const found = await new OpenAI({ baseURL, apiKey: "any" }).chat.completions.create(asked);
  if (!stream) return found.choices[0].message.content;
  let text = "";
  for await (const one of found) text += one.choices[0]?.delta?.content ?? "";
  return text;
}

async function byOpenaiResponses() {
  const { default: OpenAI } = await load("openai");
  const found = await new OpenAI({ baseURL, apiKey: "any" }).responses.create({ model: "support", input: question, stream });
  if (!stream) return found.output_text;
  let text = "";
  for await (const one of found) if (one.type === "response.output_text.delta") text += one.delta;
  return text;
}

async function byAnthropic() {
  const { default: Anthropic } = await load("@anthropic-ai/sdk");
  const client = new Anthropic({ baseURL: baseURL.replace(/\/v1$/, ""), apiKey: "any" });
  const asked = { model: "support", max_tokens: 1024, messages: [{ role: "user", content: question }] };
  return stream ? client.messages.stream(asked).finalText() : (await client.messages.create(asked)).content[0].text;
}

async function byAi(model) {
  const { generateText, streamText } = await load("ai");
  if (!stream) return (await generateText({ model, prompt: question })).text;
  let text = "";
  let failed;
  const found = streamText({ model, prompt: question, onError: ({ error }) => { failed = error; } });
  for await (const part of found.textStream) text += part;
  if (failed) throw failed;
  return text;
}

async function run() {
  if (client === "openai-node") return byOpenai();
  if (client === "openai-node-responses") return byOpenaiResponses();
  if (client === "anthropic-node") return byAnthropic();
  if (client === "ai-sdk-anthropic") {
    const { createAnthropic } = await load("@ai-sdk/anthropic");
    return byAi(createAnthropic({ baseURL, apiKey: "any" })("support"));
  }
  if (client === "ai-sdk-responses") {
    const { createOpenAI } = await load("@ai-sdk/openai");
    return byAi(createOpenAI({ baseURL, apiKey: "any" })("support"));
  }
  if (client === "ai-sdk-openai") {
    const { createOpenAI } = await load("@ai-sdk/openai");
    return byAi(createOpenAI({ baseURL, apiKey: "any" }).chat("support"));
  }
  const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");
  return byAi(createOpenAICompatible({ name: "guardrail", baseURL, apiKey: "any" })("support"));
}

const shown = await run().then(
  (text) => ({ text }),
  (error) => ({ error: `${error?.message ?? JSON.stringify(error)} ${error?.responseBody ?? ""}` }),
);
process.stdout.write(JSON.stringify(shown));
