// Sixteen lanes, three ways: AVX-512 with VNNI, AVX2 with FMA, and plain C++. Every operation is the same IEEE operation on every
// lane in each, so whatever is written on top gives the same bits on every instruction set. Built with -ffp-contract=off.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__AVX512VNNI__) || defined(__AVX2__)
#include <immintrin.h>
#endif

namespace baton { namespace BATON_ISA {

constexpr int kLanes = 16;

#if defined(__AVX512VNNI__)

struct F { __m512 v; };   // 16 float32
struct I { __m512i v; };  // 16 int32
struct B { __m512i v; };  // 64 bytes: lane i holds 4 codes of output i

static inline F splat(float x) { return {_mm512_set1_ps(x)}; }
static inline F load(const float* p) { return {_mm512_loadu_ps(p)}; }
static inline void store(float* p, F a) { _mm512_storeu_ps(p, a.v); }
static inline F add(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
static inline F sub(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
static inline F mul(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
static inline F div(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
static inline F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
static inline F max(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }
static inline F min(F a, F b) { return {_mm512_min_ps(a.v, b.v)}; }
static inline F abs(F a) { return {_mm512_abs_ps(a.v)}; }
static inline I zeroi() { return {_mm512_setzero_si512()}; }
static inline I splati(int32_t x) { return {_mm512_set1_epi32(x)}; }
static inline I round(F a) { return {_mm512_cvtps_epi32(a.v)}; }
static inline F to_float(I a) { return {_mm512_cvtepi32_ps(a.v)}; }
static inline I subi(I a, I b) { return {_mm512_sub_epi32(a.v, b.v)}; }
static inline F exp2i(I n) { return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n.v, _mm512_set1_epi32(127)), 23))}; }
static inline F keep(F a, int n, F other) { return {_mm512_mask_blend_ps((__mmask16)(n >= 16 ? 0xffff : (1u << n) - 1), other.v, a.v)}; }
static inline F load_half(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
static inline F load_bf16(const uint16_t* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16))};
}
static inline void store_i8(int8_t* p, I a) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(a.v)); }
static inline B loadb(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
static inline B low(B a) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(15))}; }
static inline B high(B a) { return {_mm512_and_si512(_mm512_srli_epi16(a.v, 4), _mm512_set1_epi8(15))}; }
static inline I dot4(I acc, B w, int32_t x) { return {_mm512_dpbusd_epi32(acc.v, w.v, _mm512_set1_epi32(x))}; }
static inline I dot4_wide(I acc, B w, int32_t x) { return dot4(acc, w, x); }

#elif defined(__AVX2__)

struct F { __m256 lo, hi; };
struct I { __m256i lo, hi; };
struct B { __m256i lo, hi; };

#define BATON_BOTH(call_lo, call_hi) { call_lo, call_hi }
static inline F splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
static inline F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
static inline void store(float* p, F a) { _mm256_storeu_ps(p, a.lo); _mm256_storeu_ps(p + 8, a.hi); }
static inline F add(F a, F b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
static inline F sub(F a, F b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
static inline F mul(F a, F b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
static inline F div(F a, F b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
static inline F fma(F a, F b, F c) { return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }
static inline F max(F a, F b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
static inline F min(F a, F b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
static inline F abs(F a) {
  const __m256 m = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  return {_mm256_and_ps(a.lo, m), _mm256_and_ps(a.hi, m)};
}
static inline I zeroi() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
static inline I splati(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
static inline I round(F a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
static inline F to_float(I a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
static inline I subi(I a, I b) { return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)}; }
static inline __m256 exp2i_half(__m256i n) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23)); }
static inline F exp2i(I n) { return {exp2i_half(n.lo), exp2i_half(n.hi)}; }
static inline __m256 below(int n) {
  return _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)));
}
static inline F keep(F a, int n, F other) { return {_mm256_blendv_ps(other.lo, a.lo, below(n)), _mm256_blendv_ps(other.hi, a.hi, below(n - 8))}; }
static inline F load_half(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
static inline __m256 bf16_half(const uint16_t* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}
static inline F load_bf16(const uint16_t* p) { return {bf16_half(p), bf16_half(p + 8)}; }
static inline void store_i8(int8_t* p, I a) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xd8);
  _mm_storeu_si128((__m128i*)p, _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}
static inline B loadb(const uint8_t* p) { return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 32))}; }
static inline B low(B a) { const __m256i m = _mm256_set1_epi8(15); return {_mm256_and_si256(a.lo, m), _mm256_and_si256(a.hi, m)}; }
static inline B high(B a) {
  const __m256i m = _mm256_set1_epi8(15);
  return {_mm256_and_si256(_mm256_srli_epi16(a.lo, 4), m), _mm256_and_si256(_mm256_srli_epi16(a.hi, 4), m)};
}
// Codes up to 15: pairs of products stay below 2^15, so the saturating multiply is exact.
static inline __m256i dot4_half(__m256i acc, __m256i w, __m256i x) {
  return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1)));
}
static inline I dot4(I acc, B w, int32_t x) {
  const __m256i b = _mm256_set1_epi32(x);
  return {dot4_half(acc.lo, w.lo, b), dot4_half(acc.hi, w.hi, b)};
}
// Codes up to 255: even and odd bytes apart, in 16 bits.
static inline __m256i dot4_wide_half(__m256i acc, __m256i w, __m256i x) {
  const __m256i we = _mm256_and_si256(w, _mm256_set1_epi16(255)), wo = _mm256_srli_epi16(w, 8);
  const __m256i xe = _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8), xo = _mm256_srai_epi16(x, 8);
  return _mm256_add_epi32(acc, _mm256_add_epi32(_mm256_madd_epi16(we, xe), _mm256_madd_epi16(wo, xo)));
}
static inline I dot4_wide(I acc, B w, int32_t x) {
  const __m256i b = _mm256_set1_epi32(x);
  return {dot4_wide_half(acc.lo, w.lo, b), dot4_wide_half(acc.hi, w.hi, b)};
}

#else

struct F { float v[16]; };
struct I { int32_t v[16]; };
struct B { uint8_t v[64]; };

#define BATON_EACH(type, expr) type r; for (int i = 0; i < 16; i++) r.v[i] = (expr); return r
static inline F splat(float x) { BATON_EACH(F, x); }
static inline F load(const float* p) { BATON_EACH(F, p[i]); }
static inline void store(float* p, F a) { for (int i = 0; i < 16; i++) p[i] = a.v[i]; }
static inline F add(F a, F b) { BATON_EACH(F, a.v[i] + b.v[i]); }
static inline F sub(F a, F b) { BATON_EACH(F, a.v[i] - b.v[i]); }
static inline F mul(F a, F b) { BATON_EACH(F, a.v[i] * b.v[i]); }
static inline F div(F a, F b) { BATON_EACH(F, a.v[i] / b.v[i]); }
static inline F fma(F a, F b, F c) { BATON_EACH(F, std::fmaf(a.v[i], b.v[i], c.v[i])); }
static inline F max(F a, F b) { BATON_EACH(F, a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
static inline F min(F a, F b) { BATON_EACH(F, a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
static inline F abs(F a) { BATON_EACH(F, std::fabs(a.v[i])); }
static inline I zeroi() { BATON_EACH(I, 0); }
static inline I splati(int32_t x) { BATON_EACH(I, x); }
static inline I round(F a) { BATON_EACH(I, (int32_t)std::nearbyintf(a.v[i])); }
static inline F to_float(I a) { BATON_EACH(F, (float)a.v[i]); }
static inline I subi(I a, I b) { BATON_EACH(I, a.v[i] - b.v[i]); }
static inline float bits_to_float(uint32_t b) { float f; std::memcpy(&f, &b, 4); return f; }
static inline F exp2i(I n) { BATON_EACH(F, bits_to_float((uint32_t)(n.v[i] + 127) << 23)); }
static inline F keep(F a, int n, F other) { BATON_EACH(F, i < n ? a.v[i] : other.v[i]); }
static inline float half_to_float(uint16_t h) {
  const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31, fraction = h & 1023;
  if (exponent == 31) return bits_to_float(sign | 0x7f800000 | (fraction << 13));
  if (exponent) return bits_to_float(sign | ((exponent + 112) << 23) | (fraction << 13));
  const float tiny = (float)fraction * 0x1p-24f;
  return sign ? -tiny : tiny;
}
static inline F load_half(const uint16_t* p) { BATON_EACH(F, half_to_float(p[i])); }
static inline F load_bf16(const uint16_t* p) { BATON_EACH(F, bits_to_float((uint32_t)p[i] << 16)); }
static inline void store_i8(int8_t* p, I a) { for (int i = 0; i < 16; i++) p[i] = (int8_t)a.v[i]; }
static inline B loadb(const uint8_t* p) { B r; std::memcpy(r.v, p, 64); return r; }
static inline B low(B a) { for (int i = 0; i < 64; i++) a.v[i] &= 15; return a; }
static inline B high(B a) { for (int i = 0; i < 64; i++) a.v[i] >>= 4; return a; }
static inline I dot4(I acc, B w, int32_t x) {
  int8_t b[4];
  std::memcpy(b, &x, 4);
  for (int i = 0; i < 16; i++)
    for (int j = 0; j < 4; j++) acc.v[i] += (int32_t)w.v[4 * i + j] * b[j];
  return acc;
}
static inline I dot4_wide(I acc, B w, int32_t x) { return dot4(acc, w, x); }

#endif

static inline F zero() { return splat(0.f); }

// Lanes i and i + 8, then + 4, + 2, + 1: the one order of every horizontal sum.
#if defined(__AVX512VNNI__) || defined(__AVX2__)
#if defined(__AVX512VNNI__)
static inline __m256 lower(F a) { return _mm512_castps512_ps256(a.v); }
static inline __m256 upper(F a) { return _mm512_extractf32x8_ps(a.v, 1); }
#else
static inline __m256 lower(F a) { return a.lo; }
static inline __m256 upper(F a) { return a.hi; }
#endif
static inline float total(F a) {
  const __m256 e = _mm256_add_ps(lower(a), upper(a));
  const __m128 f = _mm_add_ps(_mm256_castps256_ps128(e), _mm256_extractf128_ps(e, 1)), g = _mm_add_ps(f, _mm_movehl_ps(f, f));
  return _mm_cvtss_f32(_mm_add_ss(g, _mm_shuffle_ps(g, g, 1)));
}
static inline float largest(F a) {
  const __m256 e = _mm256_max_ps(lower(a), upper(a));
  const __m128 f = _mm_max_ps(_mm256_castps256_ps128(e), _mm256_extractf128_ps(e, 1)), g = _mm_max_ps(f, _mm_movehl_ps(f, f));
  return _mm_cvtss_f32(_mm_max_ss(g, _mm_shuffle_ps(g, g, 1)));
}
#else
static inline float total(F a) {
  for (int width = 8; width; width /= 2)
    for (int i = 0; i < width; i++) a.v[i] = a.v[i] + a.v[i + width];
  return a.v[0];
}
static inline float largest(F a) {
  for (int width = 8; width; width /= 2)
    for (int i = 0; i < width; i++) a.v[i] = a.v[i] > a.v[i + width] ? a.v[i] : a.v[i + width];
  return a.v[0];
}
#endif

// e^x for x in [-87, 88] (clamped), relative error about 2e-7: 2^n times a polynomial on [-ln2/2, ln2/2].
static inline F exp(F x) {
  x = min(max(x, splat(-87.f)), splat(88.f));
  const F n = to_float(round(mul(x, splat(1.44269504f))));
  F r = fma(n, splat(-0.693359375f), x);
  r = fma(n, splat(2.12194440e-4f), r);
  F p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  p = fma(p, mul(r, r), add(r, splat(1.f)));
  return mul(p, exp2i(round(n)));
}

static inline F silu(F x) { return div(x, add(splat(1.f), exp(sub(zero(), x)))); }

}}  // namespace
