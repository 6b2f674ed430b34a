// The matrix unit (AMX): 16 rows meet a panel of 16 outputs, a group of 32 at a time. It sums integers, which is exact, and the groups
// are added up as in ops.h: the bits are the same with and without it.
#pragma once
#include "ops.h"

namespace baton { namespace BATON_ISA {

constexpr int kTileRows = 16;

// How many panels are spread out at a time: enough that a row's results lie side by side, few enough for the second-level cache.
static int spread_panels(int64_t k) {
  const int64_t fit = (512 << 10) / (k * kLanes);
  return fit < 1 ? 1 : fit > 16 ? 16 : (int)fit;
}

// Bytes of scratch that a thread needs for them.
static int64_t spread_bytes(int64_t k) { return k * kLanes * spread_panels(k); }

#if defined(__AMX_INT8__)

// How many of `rows` rows the matrix unit takes. Spreading 4-bit codes out pays from two times 16 rows on.
static inline int64_t tiled_rows(const BatonLinear& w, int64_t rows) {
  return w.bits == 32 || (w.bits == 4 && rows < 2 * kTileRows) ? 0 : rows / kTileRows * kTileRows;
}

struct TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 32, 64};  // 0, 1: sums [16 rows][16 outputs]; 2: activations [16][32]; 3: codes [8 pieces][64]
  uint8_t rows[16] = {16, 16, 16, 8};
};

// Makes the calling thread's tiles ready for as long as it lives.
struct Tiles {
  Tiles() {
    const TileShapes shapes;
    _tile_loadconfig(&shapes);
  }
  ~Tiles() { _tile_release(); }
};

// A panel's codes in pieces [group][8][64 bytes], one code a byte: as they lie if they have 8 bits, else spread out in `to`.
static inline const uint8_t* spread(const BatonLinear& w, int64_t panel, uint8_t* to) {
  const int groups = w.k / kGroup;
  if (w.bits == 8) return (const uint8_t*)w.codes + panel * groups * 512;
  const uint8_t* codes = (const uint8_t*)w.codes + panel * groups * 256;
  for (int piece = 0; piece < groups * 4; piece++) {
    const B both = loadb(codes + piece * 64);
    _mm512_storeu_si512(to + piece * 128, low(both).v);
    _mm512_storeu_si512(to + piece * 128 + 64, high(both).v);
  }
  asm volatile("" ::: "memory");  // compilers do not see that tile loads read memory
  return to;
}

// A group's sums in one of two tiles: multiplied now, stored a step later when they are there.
static inline void multiply(bool odd, const int8_t* x, int64_t k, const uint8_t* codes) {
  _tile_loadd(2, x, k);
  _tile_loadd(3, codes, 64);
  if (odd) {
    _tile_zero(1);
    _tile_dpbsud(1, 2, 3);
  } else {
    _tile_zero(0);
    _tile_dpbsud(0, 2, 3);
  }
}

static inline void put(bool odd, int32_t* to) {
  if (odd) _tile_stored(1, to, 64);
  else _tile_stored(0, to, 64);
}

// As panel4 and panel8, from spread codes. Group g is added up while g + 1 is stored and g + 2 multiplied.
template <bool Wide, bool Shift>
static inline void panel_tiles(const BatonLinear& w, int64_t panel, const uint8_t* codes, const Quantised& q, int64_t row, F* out) {
  const int64_t k = w.k, groups = k / kGroup, stride = Shift ? 32 : 16;
  const int8_t* x = q.codes + row * k;
  const float *x_scales = q.scales + row, *x_sums = q.sums + row;
  const int32_t* x_isums = q.isums + row;
  const uint16_t* scales = w.scales + panel * groups * stride;
  alignas(64) int32_t sums[2][kTileRows * kLanes];
  F acc[kTileRows];
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; r++) acc[r] = zero();
  multiply(false, x, k, codes);
  put(false, sums[0]);
  if (groups > 1) multiply(true, x + kGroup, k, codes + 512);
  for (int64_t g = 0; g < groups; g++, scales += stride, x_scales += q.rows, x_sums += q.rows, x_isums += q.rows) {
    if (g + 2 < groups) multiply(g % 2, x + (g + 2) * kGroup, k, codes + (g + 2) * 512);
    if (g + 1 < groups) put((g + 1) % 2, sums[(g + 1) % 2]);
    const F scale = load_half(scales), shift = Shift ? load_half(scales + kLanes) : zero();
    const int32_t* here = sums[g % 2];
#pragma GCC unroll 16
    for (int r = 0; r < kTileRows; r++) {
      I dots = {_mm512_load_si512(here + r * kLanes)};
      if (Wide) dots = subi(dots, splati(x_isums[r]));
      acc[r] = fma(mul(scale, splat(x_scales[r])), to_float(dots), acc[r]);
      if (Shift) acc[r] = fma(shift, splat(x_sums[r]), acc[r]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; r++) out[r] = acc[r];
}

static inline void rows_by_tiles(const BatonLinear& w, int64_t panel, const uint8_t* codes, const Quantised& q, int64_t row, F* acc) {
  if (w.bits == 4 && w.has_shift) panel_tiles<false, true>(w, panel, codes, q, row, acc);
  else if (w.bits == 4) panel_tiles<false, false>(w, panel, codes, q, row, acc);
  else if (w.has_shift) panel_tiles<true, true>(w, panel, codes, q, row, acc);
  else panel_tiles<true, false>(w, panel, codes, q, row, acc);
}

#else

static inline int64_t tiled_rows(const BatonLinear&, int64_t) { return 0; }
struct Tiles {};
static inline const uint8_t* spread(const BatonLinear&, int64_t, uint8_t* to) { return to; }
static inline void rows_by_tiles(const BatonLinear&, int64_t, const uint8_t*, const Quantised&, int64_t, F*) {}

#endif

}}  // namespace
