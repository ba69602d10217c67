"""transformers beside Troupe: sampling 16 x (40 + 64) tokens, and forward + backward of 16 x 104. usage: MODEL bf16|fp32"""
import json
import sys
import time

import torch
from transformers import AutoModelForCausalLM

BATCH, PROMPT, NEW = 16, 40, 64
dtype = torch.bfloat16 if sys.argv[2] == "bf16" else torch.float32
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=dtype)
prompts = torch.randint(10, 40000, (BATCH, PROMPT), generator=torch.Generator().manual_seed(0))
rows = torch.randint(10, 40000, (BATCH, PROMPT + NEW), generator=torch.Generator().manual_seed(1))


def generate(count):
    with torch.inference_mode():
        model.generate(input_ids=prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=count, min_new_tokens=count, do_sample=True,
                       top_k=0, pad_token_id=2)


def train():
    model.zero_grad()
    model(input_ids=rows, labels=rows).loss.backward()


def timed(function, *arguments):
    began = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - began


generate(4)
generate_s = timed(generate, NEW)
train()
train_s = timed(train)
print(json.dumps({"decode": BATCH * NEW / generate_s, "train": BATCH * (PROMPT + NEW) / train_s}))
