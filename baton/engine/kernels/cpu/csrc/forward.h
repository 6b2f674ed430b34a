// A whole forward pass: embedding, layers, final norm, logits of the wanted rows. Buffers come from the caller; nothing is allocated.
#pragma once
#include "attention.h"
#include "team.h"
#include "tiles.h"

namespace baton { namespace BATON_ISA {

struct Scratch {
  char* data;
  int64_t each;  // bytes of one thread
  char* of(int worker) const { return data + worker * each; }
};

struct Buffers {
  float *x, *normed, *qkv, *attended, *gate_up, *gated, *picked;
  Quantised q;
};

static int64_t widest(const BatonModel& m) {
  const int64_t q_dim = (int64_t)m.num_heads * m.head_dim, k = q_dim > m.hidden ? q_dim : m.hidden;
  return k > m.ffn ? k : m.ffn;
}

// A thread's scratch serves attention and the products in turn.
static int64_t scratch_bytes(const BatonModel& m) {
  const int64_t attention = sizeof(Tile) + sizeof(Running) * m.num_kv_heads, product = spread_bytes(widest(m));
  return ((attention > product ? attention : product) + 63) / 64 * 64;
}

// Carves `memory` (64-byte aligned) for up to `tokens` rows; returns the bytes needed.
static int64_t carve(const BatonModel& m, int64_t tokens, int64_t logits, char* memory, Buffers* b) {
  int64_t used = 0;
  const auto take = [&](int64_t bytes) {
    char* at = memory + used;
    used += (bytes + 63) / 64 * 64;
    return at;
  };
  const int64_t q_dim = (int64_t)m.num_heads * m.head_dim, k = widest(m);
  const int64_t rows = tokens > logits ? tokens : logits;
  b->x = (float*)take(4 * tokens * m.hidden);
  b->normed = (float*)take(4 * rows * m.hidden);
  b->qkv = (float*)take(4 * tokens * m.layers[0].qkv.n);
  b->attended = (float*)take(4 * tokens * q_dim);
  b->gate_up = (float*)take(4 * tokens * 2 * m.ffn);
  b->gated = (float*)take(4 * tokens * m.ffn);
  b->picked = (float*)take(4 * logits * m.hidden);
  b->q.codes = (int8_t*)take(rows * k);
  b->q.scales = (float*)take(4 * rows * k / kGroup);
  b->q.sums = (float*)take(4 * rows * k / kGroup);
  b->q.isums = (int32_t*)take(4 * rows * k / kGroup);
  return used;
}

static inline void emit(const BatonLinear& w, int64_t panel, F value, float* y, int64_t row, bool accumulate) {
  const int64_t at = row * w.n + panel * kLanes;
  const int count = w.n - panel * kLanes < kLanes ? (int)(w.n - panel * kLanes) : kLanes;
  if (count == kLanes) {
    if (w.bias) value = add(value, load(w.bias + panel * kLanes));
    store(y + at, accumulate ? add(load(y + at), value) : value);
    return;
  }
  float v[kLanes];
  store(v, value);
  for (int i = 0; i < count; i++) {
    const float z = w.bias ? v[i] + w.bias[panel * kLanes + i] : v[i];
    y[at + i] = accumulate ? y[at + i] + z : z;
  }
}

template <int R> static inline void rows_of(const BatonLinear& w, int64_t panel, const float* x, const Quantised& q, int64_t row, float* y, bool accumulate) {
  F acc[R];
  if (w.bits == 4) panel4<R>(w, panel, q, row, acc);
  else if (w.bits == 8) panel8<R>(w, panel, q, row, acc);
  else panel32<R>(w, panel, x, row, acc);
  for (int r = 0; r < R; r++) emit(w, panel, acc[r], y, row + r, accumulate);
}

// What the matrix unit takes of panels [from, to): rows from the first on; returns how many.
static int64_t linear_by_tiles(const BatonLinear& w, int64_t from, int64_t to, const Quantised& q, int64_t rows, float* y, bool accumulate, char* scratch) {
  const int64_t done = tiled_rows(w, rows), step = spread_panels(w.k);
  if (!done) return 0;
  const Tiles tiles;
  const uint8_t* codes[16];
  F acc[kTileRows];
  for (int64_t first = from; first < to; first += step) {
    const int64_t end = first + step < to ? first + step : to;
    for (int64_t panel = first; panel < end; panel++) codes[panel - first] = spread(w, panel, (uint8_t*)scratch + (panel - first) * w.k * kLanes);
    for (int64_t row = 0; row < done; row += kTileRows)
      for (int64_t panel = first; panel < end; panel++) {
        rows_by_tiles(w, panel, codes[panel - first], q, row, acc);
        for (int r = 0; r < kTileRows; r++) emit(w, panel, acc[r], y, row + r, accumulate);
      }
  }
  return done;
}

// y [rows, n] = x [rows, k] times w (+ y if accumulate). Quantised weights read q, made from x beforehand.
static void linear(Team& team, const BatonLinear& w, const float* x, const Quantised& q, int64_t rows, float* y, bool accumulate, Scratch scratch) {
  const int64_t panels = (w.n + kLanes - 1) / kLanes;
  team.split(panels, 4, [&](int64_t from, int64_t to, int worker) {
    const int64_t done = linear_by_tiles(w, from, to, q, rows, y, accumulate, scratch.of(worker));
    if (done == rows) return;
    for (int64_t panel = from; panel < to; panel++) {
      if (rows == 1 && w.bits == 32 && panel + 4 <= to) {
        F acc[4];
        panels32(w, panel, x, acc);
        for (int p = 0; p < 4; p++) emit(w, panel + p, acc[p], y, 0, accumulate);
        panel += 3;
        continue;
      }
      int64_t row = done;
      for (; row + 8 <= rows; row += 8) rows_of<8>(w, panel, x, q, row, y, accumulate);
      for (; row + 4 <= rows; row += 4) rows_of<4>(w, panel, x, q, row, y, accumulate);
      for (; row + 2 <= rows; row += 2) rows_of<2>(w, panel, x, q, row, y, accumulate);
      for (; row < rows; row++) rows_of<1>(w, panel, x, q, row, y, accumulate);
    }
  });
}

static void quantise(Team& team, const BatonLinear& w, const float* x, int64_t rows, Quantised& q) {
  if (w.bits == 32) return;
  q.rows = rows;
  team.split(rows, 1, [&](int64_t from, int64_t to) {
    for (int64_t r = from; r < to; r++) quantise_row(x + r * w.k, w.k, r, q);
  });
}

static void embed(const BatonLinear& w, int64_t id, float* to) {
  const int64_t panel = id / kLanes, lane = id % kLanes;
  const int groups = w.k / kGroup, stride = w.has_shift ? 32 : 16;
  for (int k = 0; k < w.k; k++) {
    if (w.bits == 32) {
      to[k] = ((const float*)w.codes)[(panel * w.k + k) * kLanes + lane];
      continue;
    }
    const int g = k / kGroup, i = k % kGroup;
    const uint8_t* codes = (const uint8_t*)w.codes + (panel * groups + g) * (w.bits == 4 ? 256 : 512);
    const int code = w.bits == 4 ? (codes[(i / 8) * 64 + 4 * lane + i % 4] >> (i % 8 < 4 ? 0 : 4)) & 15 : codes[(i / 4) * 64 + 4 * lane + i % 4] - 128;
    float s[kLanes], shift[kLanes] = {0};
    store(s, load_half(w.scales + (panel * groups + g) * stride));
    if (w.has_shift) store(shift, load_half(w.scales + (panel * groups + g) * stride + kLanes));
    to[k] = (float)code * s[lane] + shift[lane];
  }
}

static void rotary_write(Team& team, const BatonModel& m, const BatonLayer& l, int layer, const BatonBatch& batch, const BatonPool& pool, float* qkv) {
  const int dim = m.head_dim, size = pool.block_size, kv_dim = m.num_kv_heads * dim;
  team.split(batch.num_tokens, 4, [&](int64_t from, int64_t to) {
    for (int64_t t = from; t < to; t++) {
      float* row = qkv + t * l.qkv.n;
      const float *cos = m.cos + batch.positions[t] * (dim / 2), *sin = m.sin + batch.positions[t] * (dim / 2);
      for (int h = 0; h < m.num_heads + m.num_kv_heads; h++) {
        const float* norm = h < m.num_heads ? l.q_norm : l.k_norm;
        if (norm) rms_norm(row + h * dim, norm, dim, m.eps, row + h * dim);
        rotate(row + h * dim, cos, sin, dim);
      }
      const int64_t block = batch.slots[t] / size, offset = batch.slots[t] % size;
      const int64_t at = (((block * m.num_layers + layer) * 2) * size + offset) * kv_dim;
      write_kv(pool, at, row + m.num_heads * dim, kv_dim);
      write_kv(pool, at + (int64_t)size * kv_dim, row + m.num_heads * dim + kv_dim, kv_dim);
    }
  });
}

// Pieces go to whoever is free; with fewer pieces than threads a piece is cut by KV head.
static void attention(Team& team, const AttentionTask& task, Scratch scratch) {
  const BatonModel& m = *task.model;
  const BatonBatch& b = *task.batch;
  int64_t pieces = 0;
  for (int s = 0; s < b.num_seqs; s++) pieces += (b.query_start[s + 1] - b.query_start[s] + kTokenBlock - 1) / kTokenBlock;
  const int cuts = pieces < team.size() ? m.num_kv_heads : 1, heads = m.num_kv_heads / cuts;
  team.each(pieces * cuts, [&](int64_t index, int worker) {
    char* own = scratch.of(worker);
    int64_t piece = index / cuts;
    int seq = 0;
    for (;; seq++) {
      const int64_t here = (b.query_start[seq + 1] - b.query_start[seq] + kTokenBlock - 1) / kTokenBlock;
      if (piece < here) break;
      piece -= here;
    }
    const int start = b.query_start[seq] + (int)piece * kTokenBlock, head = (int)(index % cuts) * heads;
    const int end = start + kTokenBlock < b.query_start[seq + 1] ? start + kTokenBlock : b.query_start[seq + 1];
    attend_block(task, seq, start, end, head, head + heads, *(Tile*)own, (Running*)(own + sizeof(Tile)));
  });
}

static void norm_rows(Team& team, const float* x, const float* weight, int n, float eps, int64_t rows, float* y) {
  team.split(rows, 1, [&](int64_t from, int64_t to) {
    for (int64_t r = from; r < to; r++) rms_norm(x + r * n, weight, n, eps, y + r * n);
  });
}

// Logits [num_logits, head.n] of the wanted rows; K and V of every token are in the pool when it returns.
static void forward(Team& team, const BatonModel& m, const BatonBatch& batch, const BatonPool& pool, char* memory, float* logits) {
  Buffers b;
  const Scratch scratch = {memory + carve(m, batch.num_tokens, batch.num_logits, memory, &b), scratch_bytes(m)};
  const int64_t tokens = batch.num_tokens;
  for (int64_t t = 0; t < tokens; t++) embed(m.embedding, batch.token_ids[t], b.x + t * m.hidden);
  for (int i = 0; i < m.num_layers; i++) {
    const BatonLayer& l = m.layers[i];
    norm_rows(team, b.x, l.attn_norm, m.hidden, m.eps, tokens, b.normed);
    quantise(team, l.qkv, b.normed, tokens, b.q);
    linear(team, l.qkv, b.normed, b.q, tokens, b.qkv, false, scratch);
    rotary_write(team, m, l, i, batch, pool, b.qkv);
    attention(team, {&m, &pool, &batch, i, l.window, b.qkv, l.qkv.n, b.attended}, scratch);
    quantise(team, l.out, b.attended, tokens, b.q);
    linear(team, l.out, b.attended, b.q, tokens, b.x, true, scratch);
    norm_rows(team, b.x, l.ffn_norm, m.hidden, m.eps, tokens, b.normed);
    quantise(team, l.gate_up, b.normed, tokens, b.q);
    linear(team, l.gate_up, b.normed, b.q, tokens, b.gate_up, false, scratch);
    team.split(tokens, 1, [&](int64_t from, int64_t to) {
      for (int64_t t = from; t < to; t++) silu_gate(b.gate_up + t * 2 * m.ffn, m.ffn, b.gated + t * m.ffn);
    });
    quantise(team, l.down, b.gated, tokens, b.q);
    linear(team, l.down, b.gated, b.q, tokens, b.x, true, scratch);
  }
  for (int64_t r = 0; r < batch.num_logits; r++) std::memcpy(b.picked + r * m.hidden, b.x + batch.logit_rows[r] * m.hidden, 4 * (int64_t)m.hidden);
  norm_rows(team, b.picked, m.final_norm, m.hidden, m.eps, batch.num_logits, b.normed);
  quantise(team, m.head, b.normed, batch.num_logits, b.q);
  linear(team, m.head, b.normed, b.q, batch.num_logits, logits, false, scratch);
}

}}  // namespace
