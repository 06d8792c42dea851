// Work on several threads: those of torch.
#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <system_error>
#include <thread>
#include <vector>

namespace {

// Threads that so many multiply-adds are worth
inline int64_t limit_threads(int64_t threads, int64_t products) {
  return std::max<int64_t>(std::min(threads, products >> 20), 1);
}

// Call `work` with a number of its own on up to so many threads. On those of torch's OpenMP, if it is the GNU one or has
// its entry point: beside its waiting threads, a thread of our own would start slowly
template <typename Work>
void run_together(int64_t threads, Work work) {
  typedef void (*Parallel)(void (*)(void*), void*, unsigned, unsigned);
  static const Parallel parallel = reinterpret_cast<Parallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
  if (threads <= 1) return work(0);
  struct Job {
    Work& work;
    std::atomic<int64_t> next{0};
  } job{work};
  const auto start = [](void* data) {
    Job& job = *static_cast<Job*>(data);
    job.work(job.next++);
  };
  if (parallel) return parallel(start, &job, threads, 0);
  std::vector<std::thread> workers;
  try {
    for (int64_t t = 1; t < threads; t++) workers.emplace_back(start, &job);
  } catch (const std::system_error&) {  // no further thread is available
  }
  start(&job);
  for (auto& worker : workers) worker.join();
}

// Every item once, on up to so many threads
template <typename Work>
void parallel_for(int64_t items, int64_t threads, Work work) {
  std::atomic<int64_t> next{0};
  run_together(std::min(threads, items), [&](int64_t) {
    for (int64_t item = next++; item < items; item = next++) work(item);
  });
}

}  // namespace
