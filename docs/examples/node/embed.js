import OpenAI from "openai";

const target = process.env.HTTP_TARGET ?? "localhost:8000";
const client = new OpenAI({ baseURL: `http://${target}/v1`, apiKey: process.env.EMBED_TOKEN ?? "none" });
const answer = await client.embeddings.create({
  model: "all-minilm-l6-v2",
  input: ["what is batching", "why batch by tokens"],
});
console.log("vectors:", answer.data.length, "dimensions:", answer.data[0].embedding.length);
