// The plain C interface of one instruction set. Built once per set with -DBATON_ISA=amx|avx512|avx2|scalar; build.py picks the library.
#include "forward.h"

using namespace baton::BATON_ISA;
using baton::Team;

extern "C" {

void* baton_team_new(int size) { return new Team(size); }
void baton_team_free(void* team) { delete static_cast<Team*>(team); }

// Bytes of `memory` that baton_forward needs for so many tokens and logit rows with a team of `threads`.
int64_t baton_memory_bytes(const BatonModel* m, int64_t tokens, int64_t logits, int threads) {
  Buffers b;
  return carve(*m, tokens, logits, nullptr, &b) + threads * scratch_bytes(*m);
}

void baton_forward(void* team, const BatonModel* m, const BatonBatch* batch, const BatonPool* pool, char* memory, float* logits) {
  forward(*static_cast<Team*>(team), *m, *batch, *pool, memory, logits);
}

// y [rows, n] = x [rows, k] times w. memory: rows * k * 1.5 bytes, and up to k * 256 for each thread.
void baton_linear(void* team, const BatonLinear* w, const float* x, int64_t rows, char* memory, float* y) {
  Quantised q;
  const int64_t groups = rows * (w->k / kGroup);
  q.scales = (float*)memory;
  q.sums = q.scales + groups;
  q.isums = (int32_t*)(q.sums + groups);
  q.codes = (int8_t*)(q.isums + groups);
  quantise(*static_cast<Team*>(team), *w, x, rows, q);
  const Scratch scratch = {(char*)(q.codes + rows * w->k), spread_bytes(w->k)};
  linear(*static_cast<Team*>(team), *w, x, q, rows, y, false, scratch);
}
}
