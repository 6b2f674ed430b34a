// A team of threads that splits loops. Which thread does a piece never changes what it computes.
#pragma once
#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

namespace baton {

class Team {
 public:
  explicit Team(int size) : size_(size < 1 ? 1 : size) {
    for (int i = 1; i < size_; i++) threads_.emplace_back([this, i] { serve(i); });
  }
  ~Team() {
    stop_ = true;
    round_.fetch_add(1);
    round_.notify_all();
    for (auto& t : threads_) t.join();
  }
  int size() const { return size_; }

  // body(from, to) or body(from, to, worker) over [0, count) in near-equal runs whose bounds are multiples of `step`.
  template <class Body> void split(int64_t count, int64_t step, Body body) {
    const auto call = [&](int64_t from, int64_t to, int worker) {
      if constexpr (std::is_invocable_v<Body, int64_t, int64_t, int>) body(from, to, worker);
      else body(from, to);
    };
    if (size_ == 1 || count <= step) return call(0, count, 0);
    run([&](int worker) {
      const int64_t steps = (count + step - 1) / step, from = steps * worker / size_ * step, to = steps * (worker + 1) / size_ * step;
      if (from < count) call(from, to < count ? to : count, worker);
    });
  }

  // body(index, worker) for each index, handed out one by one: for pieces of unequal cost.
  template <class Body> void each(int64_t count, Body body) {
    if (size_ == 1) {
      for (int64_t i = 0; i < count; i++) body(i, 0);
      return;
    }
    std::atomic<int64_t> next{0};
    run([&](int worker) {
      for (int64_t i; (i = next.fetch_add(1)) < count;) body(i, worker);
    });
  }

 private:
  template <class Work> void run(Work work) {
    context_ = &work;
    call_ = [](void* c, int worker) { (*static_cast<Work*>(c))(worker); };
    left_.store(size_ - 1);
    round_.fetch_add(1);
    round_.notify_all();
    work(0);
    while (left_.load()) pause();
  }

  void serve(int worker) {
    for (uint64_t seen = 0;;) {
      for (int spins = 0; round_.load() == seen && spins < 4000; spins++) pause();
      while (round_.load() == seen) round_.wait(seen);
      seen++;
      if (stop_) return;
      call_(context_, worker);
      left_.fetch_sub(1);
    }
  }

  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

  const int size_;
  std::vector<std::thread> threads_;
  std::atomic<uint64_t> round_{0};
  std::atomic<int> left_{0};
  std::atomic<bool> stop_{false};
  void* context_ = nullptr;
  void (*call_)(void*, int) = nullptr;
};

}  // namespace baton
