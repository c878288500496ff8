// The same for the `openai` package of npm.
import assert from "node:assert/strict";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "Why is the sky blue?" }];
const shared = { model: "demo", temperature: 0 };

const whole = await client.chat.completions.create({ ...shared, messages });
const expected = whole.choices[0].message.content;
assert(expected.startsWith("The sky is blue because the air scatters blue light"), expected);

let text = "";
let usage = null;
const options = { stream: true, stream_options: { include_usage: true } };
for await (const chunk of await client.chat.completions.create({ ...shared, messages, ...options })) {
  text += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}
assert.equal(text, expected);
assert.equal(usage.completion_tokens, whole.usage.completion_tokens);

const input = "Why is the sky blue?";
const response = await client.responses.create({ ...shared, input });
assert.equal(response.output_text, expected);
const kinds = [];
for await (const event of await client.responses.create({ ...shared, input, stream: true })) {
  assert.equal(event.sequence_number, kinds.length);
  kinds.push(event.type);
}
assert.equal(kinds.at(-1), "response.completed");

await assert.rejects(
  client.chat.completions.create({ ...shared, messages, top_p: 2 }),
  (error) => error.status === 400 && error.param === "top_p",
);
console.log("openai of npm: as expected");
