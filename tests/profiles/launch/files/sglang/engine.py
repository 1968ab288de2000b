import sglang as sgl

ranks = 4
engine = sgl.Engine(model_path="Qwen/Qwen3-30B-A3B", tp_size=ranks, enable_fp32_lm_head=True, attention_backend="fa3")
