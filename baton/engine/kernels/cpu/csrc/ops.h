// The arithmetic of a decoder layer. A row's result depends on that row alone: one fixed order of every sum, whatever the batch,
// the chunk, the block size, the thread count or the instruction set.
#pragma once
#include "abi.h"
#include "simd.h"

namespace baton { namespace BATON_ISA {

constexpr int kGroup = 32;

// --- activations: int8 codes per group of 32 -----------------------------------------------------------------------

struct Quantised {
  int8_t* codes;   // [rows, k]
  float* scales;   // [k / 32, rows]: a group's rows side by side, to be broadcast from memory at fixed distances
  float* sums;     // [k / 32, rows], scale * sum of codes: meets the weights' shift
  int32_t* isums;  // [k / 32, rows], 128 * sum of codes: meets the + 128 of 8-bit codes
  int64_t rows;
};

static inline void quantise_group(const float* x, int8_t* codes, float* scale, float* sum, int32_t* isum) {
  const F a = load(x), b = load(x + 16);
  const float peak = largest(max(abs(a), abs(b)));
  const float d = peak / 127.f, inverse = peak > 0.f ? 127.f / peak : 0.f;
  store_i8(codes, round(mul(a, splat(inverse))));
  store_i8(codes + 16, round(mul(b, splat(inverse))));
  int32_t s = 0;
  for (int i = 0; i < kGroup; i++) s += codes[i];
  *scale = d;
  *sum = d * (float)s;
  *isum = 128 * s;
}

static inline void quantise_row(const float* x, int k, int64_t row, const Quantised& q) {
  const int groups = k / kGroup;
  for (int g = 0; g < groups; g++) {
    const int64_t at = g * q.rows + row;
    quantise_group(x + g * kGroup, q.codes + row * k + g * kGroup, q.scales + at, q.sums + at, q.isums + at);
  }
}

// --- one panel of 16 outputs for R rows ----------------------------------------------------------------------------

// Four codes of a row, to be met by four of each output. One load of its own, so that it can be broadcast from memory.
static inline int32_t quad(const int8_t* codes) {
  int32_t x;
  std::memcpy(&x, codes, 4);
  return x;
}

template <int R> static inline void panel4(const BatonLinear& w, int64_t panel, const Quantised& q, int64_t row, F* acc) {
  const int groups = w.k / kGroup;
  const uint8_t* codes = (const uint8_t*)w.codes + panel * groups * 256;
  const uint16_t* scales = w.scales + panel * groups * 32;
  for (int r = 0; r < R; r++) acc[r] = zero();
  for (int g = 0; g < groups; g++, codes += 256, scales += 32) {
    I dots[R];
    for (int r = 0; r < R; r++) dots[r] = zeroi();
    for (int piece = 0; piece < 4; piece++) {
      const B both = loadb(codes + piece * 64), first = low(both), second = high(both);
      for (int r = 0; r < R; r++) {
        const int8_t* x = q.codes + (row + r) * w.k + g * kGroup + piece * 8;
        dots[r] = dot4(dot4(dots[r], first, quad(x)), second, quad(x + 4));
      }
    }
    const F scale = load_half(scales), shift = load_half(scales + 16);
    for (int r = 0; r < R; r++) {
      const int64_t at = g * q.rows + row + r;
      acc[r] = fma(mul(scale, splat(q.scales[at])), to_float(dots[r]), acc[r]);
      acc[r] = fma(shift, splat(q.sums[at]), acc[r]);
    }
  }
}

template <int R> static inline void panel8(const BatonLinear& w, int64_t panel, const Quantised& q, int64_t row, F* acc) {
  const int groups = w.k / kGroup, stride = w.has_shift ? 32 : 16;
  const uint8_t* codes = (const uint8_t*)w.codes + panel * groups * 512;
  const uint16_t* scales = w.scales + panel * groups * stride;
  for (int r = 0; r < R; r++) acc[r] = zero();
  for (int g = 0; g < groups; g++, codes += 512, scales += stride) {
    I dots[R];
    for (int r = 0; r < R; r++) dots[r] = zeroi();
    for (int piece = 0; piece < 8; piece++) {
      const B c = loadb(codes + piece * 64);
      for (int r = 0; r < R; r++) {
        dots[r] = dot4_wide(dots[r], c, quad(q.codes + (row + r) * w.k + g * kGroup + piece * 4));
      }
    }
    const F scale = load_half(scales);
    for (int r = 0; r < R; r++) {
      const int64_t at = g * q.rows + row + r;
      acc[r] = fma(mul(scale, splat(q.scales[at])), to_float(subi(dots[r], splati(q.isums[at]))), acc[r]);
      if (w.has_shift) acc[r] = fma(load_half(scales + 16), splat(q.sums[at]), acc[r]);
    }
  }
}

template <int R> static inline void panel32(const BatonLinear& w, int64_t panel, const float* x, int64_t row, F* acc) {
  const float* values = (const float*)w.codes + panel * w.k * kLanes;
  for (int r = 0; r < R; r++) acc[r] = zero();
  for (int k = 0; k < w.k; k++) {
    const F column = load(values + (int64_t)k * kLanes);
    for (int r = 0; r < R; r++) acc[r] = fma(splat(x[(row + r) * w.k + k]), column, acc[r]);
  }
}

// Four panels of one row at once: enough independent sums to hide the latency of a float32 row alone.
static inline void panels32(const BatonLinear& w, int64_t panel, const float* x, F* acc) {
  const float* values = (const float*)w.codes + panel * w.k * kLanes;
  const int64_t stride = (int64_t)w.k * kLanes;
  for (int p = 0; p < 4; p++) acc[p] = zero();
  for (int k = 0; k < w.k; k++) {
    const F value = splat(x[k]);
    for (int p = 0; p < 4; p++) acc[p] = fma(value, load(values + p * stride + (int64_t)k * kLanes), acc[p]);
  }
}

// --- norms, rotary, gate -------------------------------------------------------------------------------------------

static inline void rms_norm(const float* x, const float* weight, int n, float eps, float* y) {
  F squares = zero();
  for (int i = 0; i < n; i += kLanes) squares = fma(load(x + i), load(x + i), squares);
  const F scale = splat(1.f / std::sqrt(total(squares) / (float)n + eps));
  for (int i = 0; i < n; i += kLanes) store(y + i, mul(mul(load(x + i), scale), load(weight + i)));
}

// Half-split pairs (i, i + dim / 2) of one head, in place.
static inline void rotate(float* head, const float* cos, const float* sin, int dim) {
  const int half = dim / 2;
  for (int i = 0; i < half; i++) {
    const float a = head[i], b = head[i + half];
    head[i] = std::fmaf(a, cos[i], -(b * sin[i]));
    head[i + half] = std::fmaf(b, cos[i], a * sin[i]);
  }
}

static inline void silu_gate(const float* gate_up, int ffn, float* y) {
  for (int i = 0; i < ffn; i += kLanes) store(y + i, mul(silu(load(gate_up + i)), load(gate_up + ffn + i)));
}

static inline uint16_t to_bf16(float x) {
  uint32_t b;
  std::memcpy(&b, &x, 4);
  return (uint16_t)((b + 0x7fff + ((b >> 16) & 1)) >> 16);
}

static inline float from_bf16(uint16_t h) {
  const uint32_t b = (uint32_t)h << 16;
  float x;
  std::memcpy(&x, &b, 4);
  return x;
}

static inline void write_kv(const BatonPool& pool, int64_t at, const float* x, int n) {
  if (pool.is_bf16) {
    uint16_t* to = (uint16_t*)pool.data + at;
    for (int i = 0; i < n; i++) to[i] = to_bf16(x[i]);
    return;
  }
  float* to = (float*)pool.data + at;
  for (int i = 0; i < n; i++) to[i] = pool.round_kv ? from_bf16(to_bf16(x[i])) : x[i];
}

}}  // namespace
