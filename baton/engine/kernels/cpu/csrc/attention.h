// Paged attention in tiles of 64 absolute positions, merged in order with a running maximum.
// Scores are sums over the head's dimensions in order, values are summed over positions in order, so one query row gives the same bits
// alone (decode) and among many (prefill).
#pragma once
#include "ops.h"

namespace baton { namespace BATON_ISA {

constexpr int kTile = 64, kMaxDim = 256, kTokenBlock = 16, kMaxGroup = 16, kMaxRows = kTokenBlock * kMaxGroup;

struct AttentionTask {
  const BatonModel* model;
  const BatonPool* pool;
  const BatonBatch* batch;
  int layer, window;
  const float* q;  // [tokens, q_stride], head h at h * head_dim
  int64_t q_stride;
  float* out;  // [tokens, heads * head_dim]
};

// One KV head's tile, K turned to [dim][position] and V as [position][dim].
struct Tile {
  alignas(64) float k[kMaxDim * kTile];
  alignas(64) float v[kTile * kMaxDim];
};

static inline int64_t slot_offset(const AttentionTask& t, const int32_t* table, int position, int kv, int head) {
  const BatonModel& m = *t.model;
  const int size = t.pool->block_size;
  const int64_t block = table[position / size];
  return ((((block * m.num_layers + t.layer) * 2 + kv) * size + position % size) * m.num_kv_heads + head) * m.head_dim;
}

static inline void load_row(const BatonPool& pool, int64_t at, int dim, float* to) {
  if (pool.is_bf16)
    for (int d = 0; d < dim; d += kLanes) store(to + d, load_bf16((const uint16_t*)pool.data + at + d));
  else
    std::memcpy(to, (const float*)pool.data + at, sizeof(float) * dim);
}

#if defined(__AVX512VNNI__)
// Turns 16 rows (stride apart) of 16 floats around.
static inline void turn16(const float* from, int stride, float* to) {
  __m512 r[16], s[16];
  for (int i = 0; i < 16; i++) r[i] = _mm512_loadu_ps(from + i * stride);
  for (int i = 0; i < 16; i += 2) {
    s[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    s[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4)
    for (int j = 0; j < 2; j++) {
      r[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(s[i + j]), _mm512_castps_pd(s[i + j + 2])));
      r[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(s[i + j]), _mm512_castps_pd(s[i + j + 2])));
    }
  for (int j = 0; j < 4; j++) {
    const __m512 a = _mm512_shuffle_f32x4(r[j], r[j + 4], 0x88), b = _mm512_shuffle_f32x4(r[j], r[j + 4], 0xdd);
    const __m512 c = _mm512_shuffle_f32x4(r[j + 8], r[j + 12], 0x88), d = _mm512_shuffle_f32x4(r[j + 8], r[j + 12], 0xdd);
    _mm512_storeu_ps(to + j * kTile, _mm512_shuffle_f32x4(a, c, 0x88));
    _mm512_storeu_ps(to + (j + 8) * kTile, _mm512_shuffle_f32x4(a, c, 0xdd));
    _mm512_storeu_ps(to + (j + 4) * kTile, _mm512_shuffle_f32x4(b, d, 0x88));
    _mm512_storeu_ps(to + (j + 12) * kTile, _mm512_shuffle_f32x4(b, d, 0xdd));
  }
}
#else
static inline void turn16(const float* from, int stride, float* to) {
  for (int i = 0; i < 16; i++)
    for (int d = 0; d < 16; d++) to[d * kTile + i] = from[i * stride + d];
}
#endif

// body(i, offset) for positions start + i of [start, end): where K (kv 0) or V (kv 1) of one head lies. One division a block.
template <class Body> static inline void each_row(const AttentionTask& t, const int32_t* table, int kv, int head, int start, int end, Body body) {
  const int size = t.pool->block_size, step = t.model->num_kv_heads * t.model->head_dim;
  for (int p = start; p < end;) {
    const int here = size - p % size < end - p ? size - p % size : end - p;
    int64_t at = slot_offset(t, table, p, kv, head);
    for (int i = 0; i < here; i++, at += step) body(p - start + i, at);
    p += here;
  }
}

static inline void load_tile(const AttentionTask& t, const int32_t* table, int head, int start, int end, Tile& tile) {
  const int dim = t.model->head_dim;
  alignas(64) float rows[16 * kMaxDim];
  for (int p = start; p < end; p += 16) {
    each_row(t, table, 0, head, p, p + 16 < end ? p + 16 : end, [&](int i, int64_t at) { load_row(*t.pool, at, dim, rows + i * dim); });
    for (int d = 0; d < dim; d += 16) turn16(rows + d, dim, tile.k + d * kTile + (p - start));
  }
  each_row(t, table, 1, head, start, end, [&](int i, int64_t at) { load_row(*t.pool, at, dim, tile.v + (int64_t)i * dim); });
}

// Query rows' running state over the tiles: the largest score so far, the sum of weights, and the weighted values [rows][dim].
struct Running {
  float peak[kMaxRows], sum[kMaxRows];
  alignas(64) float out[kMaxRows * kMaxDim];
};

// Positions [low, high) of a tile that a row sees.
struct Span { int low, high; };

// Scores of R rows against the whole tile; what a row does not see is masked by the caller.
template <int R> static inline void score(const float* const* q, const Tile& tile, int dim, F (*scores)[kTile / kLanes]) {
  F acc[R][kTile / kLanes];
  for (int r = 0; r < R; r++)
    for (int b = 0; b < kTile / kLanes; b++) acc[r][b] = zero();
  for (int d = 0; d < dim; d++)
    for (int b = 0; b < kTile / kLanes; b++) {
      const F k = load(tile.k + d * kTile + b * kLanes);
      for (int r = 0; r < R; r++) acc[r][b] = fma(splat(q[r][d]), k, acc[r][b]);
    }
  for (int r = 0; r < R; r++)
    for (int b = 0; b < kTile / kLanes; b++) scores[r][b] = acc[r][b];
}

static inline F only(F value, Span span, int at, F other) {
  const F cut = span.high <= at ? other : keep(value, span.high - at, other);
  return span.low <= at ? cut : keep(other, span.low - at, cut);
}

// Turns a row's scores into weights `p` and merges peak and sum; returns the factor that earlier values shrink by.
static inline float weigh(const F* scores, Span span, float scale, float* peak, float* sum, float* p) {
  F masked[kTile / kLanes], top = splat(-INFINITY), sums = zero();
  for (int b = 0; b < kTile / kLanes; b++) {
    masked[b] = only(mul(scores[b], splat(scale)), span, b * kLanes, splat(-INFINITY));
    top = max(masked[b], top);
  }
  const float here = largest(top), before = *peak, now = here > before ? here : before;
  for (int b = 0; b < kTile / kLanes; b++) {
    const F e = only(exp(sub(masked[b], splat(now))), span, b * kLanes, zero());
    store(p + b * kLanes, e);
    sums = add(sums, e);
  }
  float fade[kLanes];
  store(fade, exp(splat(before - now)));
  const float shrink = before == -INFINITY ? 0.f : fade[0];
  *peak = now;
  *sum = std::fmaf(*sum, shrink, total(sums));
  return shrink;
}

// Adds the values of positions [from, to), in order, to R rows' P pieces of 16 dimensions at `v`.
template <int R, int P> static inline void gather(const float (*p)[kTile], const float* v, int dim, int from, int to, F (*acc)[P]) {
  for (int j = from; j < to; j++)
    for (int i = 0; i < P; i++) {
      const F value = load(v + (int64_t)j * dim + i * kLanes);
      for (int r = 0; r < R; r++) acc[r][i] = fma(splat(p[r][j]), value, acc[r][i]);
    }
}

// Rows see different spans near the diagonal and a window's edge: the part in common is shared, the rest goes row by row, in order.
template <int R, int P>
static inline void merge(const float (*p)[kTile], const Tile& tile, int dim, int offset, const Span* spans, const float* shrink, float* out) {
  int low = spans[0].low, high = spans[0].high;
  for (int r = 1; r < R; r++) {
    low = spans[r].low > low ? spans[r].low : low;
    high = spans[r].high < high ? spans[r].high : high;
  }
  if (high < low) high = low;
  const float* v = tile.v + offset;
  F acc[R][P];
  for (int r = 0; r < R; r++) {
    for (int i = 0; i < P; i++) acc[r][i] = mul(load(out + r * dim + offset + i * kLanes), splat(shrink[r]));
    gather<1, P>(p + r, v, dim, spans[r].low, low < spans[r].high ? low : spans[r].high, acc + r);
  }
  gather<R, P>(p, v, dim, low, high, acc);
  for (int r = 0; r < R; r++) {
    gather<1, P>(p + r, v, dim, high, spans[r].high, acc + r);
    for (int i = 0; i < P; i++) store(out + r * dim + offset + i * kLanes, acc[r][i]);
  }
}

template <int R> static inline void attend(const float* const* q, const Span* spans, const Tile& tile, int dim, float scale, Running& state, int row) {
  F scores[R][kTile / kLanes];
  alignas(64) float p[R][kTile];
  float shrink[R];
  score<R>(q, tile, dim, scores);
  for (int r = 0; r < R; r++) shrink[r] = weigh(scores[r], spans[r], scale, state.peak + row + r, state.sum + row + r, p[r]);
  float* out = state.out + (int64_t)row * dim;
  int offset = 0;
  for (; offset + 64 <= dim; offset += 64) merge<R, 4>(p, tile, dim, offset, spans, shrink, out);
  for (; offset + 16 <= dim; offset += 16) merge<R, 1>(p, tile, dim, offset, spans, shrink, out);
}

// Asks for what load_tile will read of all heads, so that it arrives while the tile before is worked on.
static inline void fetch_tile(const AttentionTask& t, const int32_t* table, int start, int end) {
  const int64_t item = t.pool->is_bf16 ? 2 : 4, row = item * t.model->num_kv_heads * t.model->head_dim;
  for (int kv = 0; kv < 2; kv++)
    each_row(t, table, kv, 0, start, end, [&](int, int64_t at) {
      for (int64_t line = 0; line < row; line += 64) __builtin_prefetch((const char*)t.pool->data + item * at + line, 0, 2);
    });
}

struct Rows {
  int count;
  const float* q[kMaxRows];
  Span spans[kMaxRows];
};

// Which positions of the tile each row sees; rows [first, end) see any.
static inline void see(const AttentionTask& t, int token_start, int group, int start, Rows& rows, int* first, int* end) {
  *first = rows.count, *end = 0;
  for (int r = 0; r < rows.count; r++) {
    const int position = (int)t.batch->positions[token_start + r / group], bound = position + 1 - start;
    const int low = t.window && position - t.window + 1 > start ? position - t.window + 1 - start : 0;
    rows.spans[r] = {low < kTile ? low : kTile, bound < kTile ? bound : kTile};
    if (rows.spans[r].high <= rows.spans[r].low) continue;
    *first = r < *first ? r : *first;
    *end = r + 1;
  }
}

// KV heads [head, head_end) of up to kTokenBlock consecutive query tokens of one sequence: a head's rows are (token, head of the group),
// tokens first. Tiles are the outer loop, so that a block's heads, side by side in memory, are read together.
static void attend_block(const AttentionTask& t, int seq, int token_start, int token_end, int head, int head_end, Tile& tile, Running* states) {
  const BatonModel& m = *t.model;
  const int dim = m.head_dim, group = m.num_heads / m.num_kv_heads;
  const int32_t* table = t.batch->block_tables + (int64_t)seq * t.batch->max_blocks;
  Rows rows;
  rows.count = (token_end - token_start) * group;
  for (int h = head; h < head_end; h++) {
    Running& state = states[h - head];
    for (int r = 0; r < rows.count; r++) {
      state.peak[r] = -INFINITY;
      state.sum[r] = 0.f;
    }
    std::memset(state.out, 0, sizeof(float) * rows.count * dim);
  }
  const int last = (int)t.batch->positions[token_end - 1], earliest = (int)t.batch->positions[token_start];
  const int begin = t.window && earliest - t.window + 1 > 0 ? earliest - t.window + 1 : 0;
  for (int start = begin / kTile * kTile; start <= last; start += kTile) {
    const int next = start + kTile;
    if (next <= last) fetch_tile(t, table, next, next + kTile < last + 1 ? next + kTile : last + 1);
    int first, end;
    see(t, token_start, group, start, rows, &first, &end);
    for (int h = head; h < head_end; h++) {
      load_tile(t, table, h, start, next < last + 1 ? next : last + 1, tile);
      for (int r = 0; r < rows.count; r++) rows.q[r] = t.q + (token_start + r / group) * t.q_stride + (h * group + r % group) * dim;
      const float* const* q = rows.q;
      int r = first;
      for (; r + 4 <= end; r += 4) attend<4>(q + r, rows.spans + r, tile, dim, m.attn_scale, states[h - head], r);
      if (end - r == 3) attend<3>(q + r, rows.spans + r, tile, dim, m.attn_scale, states[h - head], r);
      if (end - r == 2) attend<2>(q + r, rows.spans + r, tile, dim, m.attn_scale, states[h - head], r);
      if (end - r == 1) attend<1>(q + r, rows.spans + r, tile, dim, m.attn_scale, states[h - head], r);
    }
  }
  for (int h = head; h < head_end; h++)
    for (int r = 0; r < rows.count; r++) {
      float* to = t.out + ((int64_t)(token_start + r / group) * m.num_heads + h * group + r % group) * dim;
      const Running& state = states[h - head];
      for (int d = 0; d < dim; d += kLanes) store(to + d, div(load(state.out + (int64_t)r * dim + d), splat(state.sum[r])));
    }
}

}}  // namespace
