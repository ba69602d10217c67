"""Tiny folders with sliding windows and scaled rope, and what transformers computes from them (see tests/fixtures/README.md)."""
import json, math, pathlib, sys, torch, transformers
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM
target = pathlib.Path(sys.argv[1])
base = dict(vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=128,
            rms_norm_eps=1e-6, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2, pad_token_id=None)
folders = {
  "mistral-window": ("mistral", dict(sliding_window=7, rope_parameters={"rope_type": "default", "rope_theta": 10000.0})),
  "qwen2-window": ("qwen2", dict(use_sliding_window=True, sliding_window=5, max_window_layers=1, rope_parameters={"rope_type": "default", "rope_theta": 10000.0})),
  "qwen3-window": ("qwen3", dict(use_sliding_window=True, sliding_window=9, layer_types=["sliding_attention", "full_attention", "sliding_attention"], rope_parameters={"rope_type": "default", "rope_theta": 10000.0})),
  "qwen2-yarn": ("qwen2", dict(rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32})),
  "llama-longrope": ("llama", dict(original_max_position_embeddings=16, rope_parameters={"rope_type": "longrope", "rope_theta": 10000.0, "factor": 8.0, "short_factor": [1.0, 1.1, 1.3, 1.7], "long_factor": [1.0, 2.0, 4.0, 7.5], "original_max_position_embeddings": 16})),
  "llama-dynamic": ("llama", dict(max_position_embeddings=16, rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 3.0})),
}
def run(model, ids, dtype):
    model = model.to(dtype)
    for p in model.parameters(): p.grad = None
    logits = model(input_ids=ids).logits
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    grads = {n: p.grad.clone() for n, p in model.named_parameters()}
    return logits.detach(), loss.detach(), grads
for name, (family, more) in folders.items():
    torch.manual_seed(sum(map(ord, name)) + 1)
    config = AutoConfig.for_model(family, **{**base, **more})
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn_like(p) * (0.1 if p.dim() == 1 else 0.25) + (1 if p.dim() == 1 and "bias" not in "" else 0))
    state = {n: p.detach().clone() for n, p in model.named_parameters()}
    ids = torch.randint(3, base["vocab_size"], (2, 20))
    logits, loss, grads = run(model, ids, torch.float32)
    import copy
    logits64, loss64, grads64 = run(copy.deepcopy(model), ids, torch.float64)
    norm = torch.sqrt(sum(g.double().square().sum() for g in grads.values()))
    norm64 = torch.sqrt(sum(g.square().sum() for g in grads64.values()))
    chosen = [n for n in grads if any(k in n for k in ("layers.1.self_attn", "layers.2.self_attn.q_proj.weight", "layers.0.mlp.down", "model.norm"))]
    tensors = {"input_ids": ids, "logits": logits, "loss": loss, "grad_norm": norm.float(), **{"grad." + n: grads[n] for n in chosen}}
    margin = None
    if "yarn" in name or "window" in name:   # with a cache the others mix frequencies of several lengths
        model = model.float()
        out = ids
        margin = math.inf
        with torch.no_grad():
            for _ in range(16):
                last = model(input_ids=out, use_cache=False).logits[:, -1]
                top = last.topk(2).values
                margin = min(margin, (top[:, 0] - top[:, 1]).min().item())
                out = torch.cat([out, last.argmax(-1, keepdim=True)], 1)
        tensors["greedy_ids"] = out
    folder = target / name
    folder.mkdir(parents=True, exist_ok=True)
    model.config.architectures = [type(model).__name__]
    model.config.dtype = torch.float32
    model.config.save_pretrained(folder)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "expected.safetensors")
    spread = lambda a, b: (a.double() - b).abs().max().item()
    tolerance = {"logits_abs": max(6 * spread(logits, logits64), 5e-6), "loss_abs": max(6 * spread(loss, loss64), 2e-6),
                 "grad_norm_rel": max(6 * abs(norm.item() - norm64.item()) / norm64.item(), 2e-5), "grad_abs": max(6 * max(spread(grads[n], grads64[n]) for n in chosen), 5e-6)}
    (folder / "expected.json").write_text(json.dumps({"torch": torch.__version__, "transformers": transformers.__version__, "parameters": sum(v.numel() for v in state.values()),
        "tolerance": {k: float(f"{v:.2g}") for k, v in tolerance.items()}, "loss": loss.item(), "grad_norm": norm.item(), "smallest_greedy_margin": margin}, indent=1) + "\n")
    print(name, json.dumps(tolerance), margin)
