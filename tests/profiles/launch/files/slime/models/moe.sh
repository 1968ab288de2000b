MODEL_ARGS=(
   --num-layers 48
   --num-experts 128
   --moe-router-topk 8
   --rotary-base "${ROTARY_BASE:-1000000}"
   --moe-router-dtype fp32
   --moe-permute-fusion
   --moe-token-dispatcher-type alltoall
)
