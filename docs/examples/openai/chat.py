import os

from openai import OpenAI

target = os.environ.get("HTTP_TARGET", "localhost:8000")
client = OpenAI(base_url=f"http://{target}/v1", api_key=os.environ.get("EMBED_TOKEN", "none"))
events = client.chat.completions.create(
    model="smollm2-135m-instruct",
    messages=[{"role": "user", "content": "What is the capital of France?"}],
    max_tokens=20,
    extra_body={"ignore_eos": True},
    stream=True,
    stream_options={"include_usage": True},
)
for event in events:
    for choice in event.choices:
        print(choice.delta.content or "", end="")
    if event.usage:
        print("\ntokens:", event.usage.completion_tokens)
