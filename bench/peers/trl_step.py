"""TRL's GRPO beside Troupe: 2 prompts x 8 samples of 64 tokens, 5 steps, the median of all but the first. usage: MODEL bf16|fp32"""
import json
import statistics
import sys
import tempfile
import time

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

PROMPTS, GROUP, NEW, STEPS = 2, 8, 64, 5


class Clock(TrainerCallback):
    def __init__(self):
        self.steps = []

    def on_step_begin(self, *_, **__):
        self.began = time.perf_counter()

    def on_step_end(self, *_, **__):
        self.steps.append(time.perf_counter() - self.began)


def reward(completions, **_):
    return [float(sum(word in completion[0]["content"] for word in (" was ", " they ", ","))) for completion in completions]


tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
tokenizer.pad_token_id = tokenizer.eos_token_id = 2
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16 if sys.argv[2] == "bf16" else torch.float32)
questions = [f"Write a very long story about {17 + i} + {25 + 3 * i} rabbits." for i in range(STEPS * PROMPTS)]
settings = GRPOConfig(output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, per_device_train_batch_size=PROMPTS * GROUP, num_generations=GROUP,
                      max_completion_length=NEW, max_steps=STEPS, save_strategy="no", report_to=[], learning_rate=1e-6, beta=0.0,
                      gradient_checkpointing=False, generation_kwargs={"min_new_tokens": NEW}, disable_tqdm=True)
clock = Clock()
GRPOTrainer(model=model, reward_funcs=reward, args=settings, processing_class=tokenizer, callbacks=[clock],
            train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": question}]} for question in questions])).train()
print(json.dumps({"grpo": PROMPTS * GROUP * NEW / statistics.median(clock.steps[1:])}))
