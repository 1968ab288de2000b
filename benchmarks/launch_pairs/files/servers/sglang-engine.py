"""An engine in the process of the trainer."""

import sglang as sgl

MODEL = "Qwen/Qwen3-30B-A3B"

if __name__ == "__main__":
    engine = sgl.Engine(model_path=MODEL, tp_size=2, disable_cuda_graph=True, mem_fraction_static=0.7, random_seed=42)
    print(engine.generate("Hello", {"temperature": 1.0, "max_new_tokens": 16}, return_logprob=True))
