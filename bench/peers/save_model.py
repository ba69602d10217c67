"""SmolLM2's GGUF file as a folder of plain weights for the peers. usage: GGUF FOLDER"""
import pathlib
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

path = pathlib.Path(sys.argv[1])
loaded = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
config = loaded.config
if hasattr(config, "quantization_config"):
    del config.quantization_config  # with it TRL takes the plain weights for quantised ones and refuses to train
model = LlamaForCausalLM(config)  # a fresh one: the loaded one would be saved as quantised
model.load_state_dict(loaded.state_dict())
model.save_pretrained(sys.argv[2])
AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).save_pretrained(sys.argv[2])
