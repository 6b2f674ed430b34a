// The plain C interface: what Python fills in through ctypes (cpu.py mirrors these structs field by field).
#pragma once
#include <cstdint>

// A weight [n, k] in panels of 16 outputs (n padded to a multiple of 16 with zero rows).
//   bits 4:  codes[panel][group of 32][4][64 bytes]: byte 4 * i + j of piece p holds, for output i, code 8p + j (low) and 8p + 4 + j (high)
//   bits 8:  codes[panel][group][8][64]: byte 4 * i + j of piece p holds code 4p + j of output i; codes are stored + 128
//   bits 32: floats[panel][k][16]
// scales[panel][group][16] float16, then the same of shifts if has_shift: value = code * scale + shift.
struct BatonLinear {
  const void* codes;
  const uint16_t* scales;
  const float* bias;
  int32_t n, k, bits, has_shift;
};

struct BatonLayer {
  const float *attn_norm, *ffn_norm, *q_norm, *k_norm;  // q_norm, k_norm: null if the model has none
  BatonLinear qkv, out, gate_up, down;
  int32_t window;  // 0: none
};

struct BatonModel {
  int32_t num_layers, hidden, num_heads, num_kv_heads, head_dim, ffn;
  float eps, attn_scale;
  const BatonLayer* layers;
  const float* final_norm;
  BatonLinear embedding, head;
  const float *cos, *sin;  // [max_model_len, head_dim / 2]
};

// The pool [num_blocks, num_layers, 2, block_size, num_kv_heads, head_dim]; K and V are rounded to bfloat16 values if round_kv.
struct BatonPool {
  void* data;
  int32_t is_bf16, round_kv, block_size;
};

struct BatonBatch {
  int32_t num_tokens, num_seqs, max_blocks, num_logits;
  const int64_t *token_ids, *positions, *slots, *logit_rows;
  const int32_t *block_tables, *query_start, *seq_lens;
};
