import OpenAI from "openai";

const target = process.env.HTTP_TARGET ?? "localhost:8000";
const client = new OpenAI({ baseURL: `http://${target}/v1`, apiKey: process.env.EMBED_TOKEN ?? "none" });
const events = await client.chat.completions.create({
  model: "smollm2-135m-instruct",
  messages: [{ role: "user", content: "What is the capital of France?" }],
  max_tokens: 20,
  ignore_eos: true,
  stream: true,
  stream_options: { include_usage: true },
});
for await (const event of events) {
  process.stdout.write(event.choices[0]?.delta.content ?? "");
  if (event.usage) console.log("\ntokens:", event.usage.completion_tokens);
}
